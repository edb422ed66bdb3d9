"""Content: payloads and results as JSON bytes, and texts that any store and terminal can show.

What `encode` returns is canonical (sorted keys, no spaces, UTF-8), so equal content has equal bytes; `1` and
`1.0` are different content, and so are `0.0` and `-0.0`. Times, UUIDs and Decimals become text. A value that
cannot be stored and read back unchanged is refused as BadInput with a stable code and its place. No function
here recurses without bound.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from enum import Enum
from itertools import accumulate
from types import NoneType
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from endwell.errors import BadInput

MAX_BYTES: Final = 1024 * 1024
"""The largest content, in bytes of canonical JSON as stored."""
MAX_WRITTEN_BYTES: Final = 8 * MAX_BYTES
"""The longest JSON text that is read: escapes (`\\u0041`) write one stored byte with up to six."""
MAX_DEPTH: Final = 64
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**63 - 1
TEXT_LIMIT: Final = 4000  # characters of an error text that are kept

_FIELD_LIMIT: Final = 160
_KEY_LIMIT: Final = 64
_HINTS: Final = {
    "bad_json": "It must be one JSON value; text needs double quotes.",
    "bad_text": "Remove the character, or encode the text, for example as base64.",
    "duplicate_key": "Each key may appear once in an object.",
    "integer_too_large": "Integers are limited to 64 bits; send larger ones as text.",
    "not_finite_number": "JSON has no NaN or Infinity; send null or text instead.",
    "not_json": "Use plain JSON values, lists, dicts with text keys, dataclasses, Structs, Pydantic models.",
    "payload_too_large": "Keep large content in a file or database and send a reference to it.",
    "too_deep": f"At most {MAX_DEPTH} levels are allowed; check for a value that contains itself.",
}

T = TypeVar("T")

_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_NUMBERS: Final = (int, float, Decimal)
_LISTS: Final = (list, tuple)
_WRITTEN_AS_TEXT: Final = (datetime.date, datetime.time, datetime.timedelta, UUID)


def encode(value: Any, *, what: str = "payload") -> bytes:
    """The canonical JSON of a value; errors call it `what`."""
    weight = _weigh_values((value,), 0, 0)
    if weight == _TOO_MUCH:
        raise _too_large(what)
    if weight == _ODD:
        value = _Walk(what).to_plain(value)
    try:
        data = _ENCODER.encode(value)
    except UnicodeEncodeError:
        data = b"\\u0000"
    # bad text, or harmless text that only looks like an escape. `find` is quicker than `in`, which tries
    # the bytes as a number first
    if data.find(b"\\u0000") >= 0:
        _Walk(what).to_plain(value)
    _check_size(data, what)
    return data


def decode(data: bytes | str, *, what: str = "payload") -> Any:
    """Read JSON from outside, more strictly than JSON libraries do."""
    raw = _utf8_bytes(data, what)
    if len(raw) > MAX_WRITTEN_BYTES:
        raise _too_large(what)
    if _nesting_depth(raw) > MAX_DEPTH:
        raise _bad_content("too_deep", f"{what} is nested more than {MAX_DEPTH} levels deep", what)
    value = _parse(raw, what)
    if b"\\u" in raw or _weigh_values((value,), 0, 0) < 0:
        value = _Walk(what).to_plain(value)
    if len(raw) > MAX_BYTES:  # written with escapes or white space: what counts is the stored form
        _check_size(_ENCODER.encode(value), what)
    return value


def decode_stored(data: bytes) -> Any:
    """Read JSON that `encode` has written."""
    return msgspec.json.decode(data)


def read_as(text: str | bytes, kind: type[T]) -> T | None:
    """Read JSON from an untrusted writer; None if it cannot be read as `kind`."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def fingerprint(data: bytes) -> str:
    """Equal content has equal fingerprints: the SHA-256 of its canonical bytes."""
    return hashlib.sha256(data).hexdigest()


def field_path(what: str, path: Sequence[str | int]) -> str:
    """A place inside content, as errors name it: `payload.items[3].price`."""
    return clean_text(what + "".join(map(_step, path)), _FIELD_LIMIT)


def clean_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """Cut the text to `limit` characters, and replace characters that stores cannot keep."""
    if len(text) > limit:
        kept = max(0, limit - len(_cut_mark(len(text))))
        text = (text[:kept] + _cut_mark(len(text) - kept))[:limit]
    return _UNSTORABLE.sub("\ufffd", text)


def safe_repr(thing: object, limit: int = TEXT_LIMIT) -> str:
    """`repr()`, cleaned and cut, of an object that may not even have a working one."""
    return _render_safely(repr, thing, limit)


def safe_str(thing: object, limit: int = TEXT_LIMIT) -> str:
    """`str()`, cleaned and cut, of an object that may not even have a working one."""
    return _render_safely(str, thing, limit)


def printable_text(text: str, *, keep_lines: bool = False) -> str:
    """Escape characters that would move a terminal's cursor, or colour or reorder its text."""
    pattern = _UNSHOWABLE_IN_LINES if keep_lines else _UNSHOWABLE
    return pattern.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_CONTROLS: Final = "\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNSHOWABLE: Final = re.compile(f"[\x00-\x0a{_CONTROLS}]")
_UNSHOWABLE_IN_LINES: Final = re.compile(f"[\x00-\x08{_CONTROLS}]")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def _weigh_values(values: Iterable[Any], depth: int, weight: int) -> int:
    """The least bytes it will take, `_TOO_MUCH`, or `_ODD` when the slow walk must look.

    This is the hot path of every submit and result. Every item takes two bytes or more; counting
    them stops values that share their parts so often that they are enormous when written out.
    """
    for item in values:
        kind = type(item)
        if kind is str or kind is bool or kind is NoneType:
            continue
        if kind is int:
            if MIN_INTEGER <= item <= MAX_INTEGER:
                continue
        elif kind is float:
            if math.isfinite(item):
                continue
        elif (kind is dict or kind is list or kind is tuple) and depth < MAX_DEPTH:
            weight += 2 * len(item)
            if weight > MAX_BYTES:
                return _TOO_MUCH
            if kind is not dict or _has_text_keys(item):
                weight = _weigh_values(item.values() if kind is dict else item, depth + 1, weight)
                if weight >= 0:
                    continue
                return weight
        return _ODD
    return weight


_ODD: Final = -1
_TOO_MUCH: Final = -2


def _has_text_keys(item: dict[Any, Any]) -> bool:
    for key in item:  # noqa: SIM110 (all() takes three times as long)
        if type(key) is not str:
            return False
    return True


class _Walk:
    """The slow, exact walk: it makes plain JSON values, or names the value that cannot become one."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.path: list[str | int] = []
        self.weight = 0

    def to_plain(self, value: Any) -> Any:
        """The same value in plain builtins."""
        if value is None or value is True or value is False:
            return value
        if isinstance(value, Enum):
            return self.to_plain(value.value)
        if isinstance(value, str):
            return self._checked_text(str.__str__(value))
        if isinstance(value, _NUMBERS):
            return self._plain_number(value)
        if isinstance(value, _LISTS):
            return [item for _, item in self._plain_items(value, enumerate(value))]
        if isinstance(value, dict):
            return dict(self._plain_items(value, zip(map(self._key, value), value.values(), strict=True)))
        return self.to_plain(self._state_of(value))

    def _bad_value(self, code: str, problem: str) -> BadInput:
        field = field_path(self.what, self.path)
        return _bad_content(code, f"{field} {problem}", field)

    def _plain_items(self, container: Collection[Any], items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        self.weight += 2 * len(container)
        if len(self.path) >= MAX_DEPTH:
            raise self._bad_value("too_deep", f"is nested more than {MAX_DEPTH} levels deep")
        if self.weight > MAX_BYTES:
            raise _too_large(self.what)
        for place, item in items:
            self.path.append(place)
            yield place, self.to_plain(item)
            self.path.pop()

    def _key(self, key: Any) -> str:
        if not isinstance(key, str):
            raise self._bad_value("not_json", f"has the key {safe_repr(key, _KEY_LIMIT)}, which is not text")
        return self._checked_text(str.__str__(key))

    def _checked_text(self, text: str) -> str:
        if found := _UNSTORABLE.search(text):
            name = "the NUL character" if found[0] == "\0" else "half of a surrogate pair"
            raise self._bad_value("bad_text", f"contains {name} at position {found.start()}")
        return text

    def _plain_number(self, number: int | float | Decimal) -> int | float | str:
        if isinstance(number, int):
            if not MIN_INTEGER <= number <= MAX_INTEGER:
                raise self._bad_value("integer_too_large", "is an integer of more than 64 bits")
            return int.__int__(number)
        if not (number.is_finite() if isinstance(number, Decimal) else math.isfinite(number)):
            raise self._bad_value("not_finite_number", f"is {number}, which JSON cannot hold")
        return float.__float__(number) if isinstance(number, float) else str(number)

    def _state_of(self, value: Any) -> Any:
        if isinstance(value, _RepeatedKey):
            raise self._bad_value("duplicate_key", f"has the key {safe_repr(value.key, _KEY_LIMIT)} twice")
        try:
            return _object_state(value)
        except Exception as error:
            problem = f"cannot become JSON: {safe_str(error, _FIELD_LIMIT)}"
            raise self._bad_value("not_json", problem) from None


def _object_state(value: Any) -> Any:
    """The fields of an object, one level down."""
    if isinstance(value, _WRITTEN_AS_TEXT):
        return msgspec.to_builtins(value)
    if isinstance(value, msgspec.Struct):
        return _struct_state(value)
    if hasattr(type(value), "model_dump"):
        if _has_set(value.model_dump()):
            raise TypeError("it has a set, which has no order; use a list")
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"it is of type {type(value).__qualname__}")


def _struct_state(value: msgspec.Struct) -> Any:
    names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    fields = {written: getattr(value, name) for name, written in names}
    config = value.__struct_config__
    if config.tag_field is not None:
        fields = {config.tag_field: config.tag, **fields}
    if config.array_like:
        return list(fields.values())
    return {name: item for name, item in fields.items() if item is not msgspec.UNSET}


def _has_set(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_set, value.values()))
    if isinstance(value, _LISTS):
        return any(map(_has_set, value))
    return isinstance(value, set | frozenset)


class _RepeatedKey(msgspec.Struct):
    """Stands where an object has one key twice, so that the walk can tell the place."""

    key: str


def _json_object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    counts = Counter(key for key, _ in pairs)
    return _RepeatedKey(counts.most_common(1)[0][0])


def _json_integer(digits: str) -> int:
    return int(digits) if len(digits) <= 20 else MAX_INTEGER + 1  # any integer that will be refused


_PARSER: Final = json.JSONDecoder(
    object_pairs_hook=_json_object, parse_int=_json_integer, parse_constant=float
)
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_CLIMB: Final = [{"[": 1, "{": 1}.get(chr(byte), -1) for byte in range(256)]


def _check_size(data: bytes, what: str) -> None:
    if len(data) > MAX_BYTES:
        problem = f"{what} is {len(data):,} bytes; at most {MAX_BYTES:,} are allowed"
        raise _bad_content("payload_too_large", problem, what)


def _too_large(what: str) -> BadInput:
    return _bad_content("payload_too_large", f"{what} is larger than {MAX_BYTES:,} bytes", what)


def _utf8_bytes(data: bytes | str, what: str) -> bytes:
    try:
        return data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError as error:
        raise _bad_content(
            "bad_text", f"{what} contains half of a surrogate pair at position {error.start}", what
        ) from None


def _nesting_depth(raw: bytes) -> int:
    """The depth of the brackets, found without parsing, so that no parser can run out of stack."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return 0
    brackets = _STRING.sub(b"", raw).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_CLIMB.__getitem__, brackets)), default=0)


def _parse(raw: bytes, what: str) -> Any:
    try:
        text = raw.decode()
        return _PARSER.decode(text)
    except UnicodeDecodeError as error:
        raise _bad_content("bad_json", f"{what} is not UTF-8 at byte {error.start}", what) from None
    except json.JSONDecodeError as error:
        place = len(error.doc[: error.pos].encode())
        raise _bad_content(
            "bad_json", f"{what} is not valid JSON at byte {place}: {error.msg}", what
        ) from None


def _bad_content(code: str, message: str, field: str) -> BadInput:
    return BadInput(message, code=code, hint=_HINTS[code], field=field)


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    name = printable_text(part if len(part) <= _KEY_LIMIT else part[:_KEY_LIMIT] + "…")
    return f".{name}" if part.isidentifier() else f'["{name}"]'


def _cut_mark(count: int) -> str:
    return f"… ({count} characters cut)"


def _render_safely(render: Callable[[object], str], thing: object, limit: int) -> str:
    try:
        return clean_text(str.__str__(render(thing)), limit)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"<{type(thing).__name__} whose {render.__name__}() raised {type(error).__name__}>"
        return clean_text(problem, limit)
