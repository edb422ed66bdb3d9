"""Fuzzing decoders of user input: payloads, results, errors, typed values, schemas, names, edits."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any, Final, Literal

import msgspec

from endwell.errors import EndwellError, Fail, Refused, Retry, UsageError
from endwell.model import content, names, schema_check
from endwell.model.commands import FailTurn, Finish
from endwell.model.task import Task
from endwell.model.typed import Shape
from endwell.operate.repair import apply_edits, edit_of
from endwell.policy.submitting import microseconds
from endwell.turn import endings
from endwell.turn.agents import agent_of
from endwell.turn.held_turn import HeldTurn
from tests.proof.fuzz.campaign import Target
from tests.proof.fuzz.mutate import json_value, one_of


def told(refusal: EndwellError, exit_code: int | None = None) -> bool:
    """Check that a refusal is text that every store and terminal can keep; return False."""
    assert refusal.code
    assert exit_code in (None, refusal.exit_code)
    assert refusal.message
    assert len(refusal.message) < 5_000
    json.dumps(refusal.as_dict()).encode()
    return False


def _payload(data: bytes) -> bool:
    try:
        value = content.decode(data)
    except Refused as refusal:
        return told(refusal)
    kept = content.encode(value)
    assert content.decode_stored(kept) == value
    assert content.encode(content.decode(kept)) == kept
    return True


class _Colour(enum.Enum):
    RED = "red"
    ODD = float("nan")


@dataclasses.dataclass
class _Order:
    id: str
    items: Any = None


class _Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


def _deep() -> Any:
    value: Any = []
    for _ in range(5_000):
        value = [value]
    return value


def _own_tail() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


_OBJECTS: Final[dict[str, Callable[[Any], Any]]] = {
    "id": lambda value: _Order("1", value),
    "items": lambda value: tuple(value) if isinstance(value, list) else value,
    "$set": lambda value: {1, 2},
    "$nan": lambda value: float("nan"),
    "$huge": lambda value: 10**30,
    "$decimal": lambda value: Decimal("1.10"),
    "$bad_decimal": lambda value: Decimal("sNaN"),
    "$date": lambda value: datetime.datetime.now(datetime.UTC),
    "$bytes": lambda value: b"\xff",
    "$rude": lambda value: _Rude(),
    "$red": lambda value: _Colour.RED,
    "$odd": lambda value: _Colour.ODD,
    "$keys": lambda value: {1: value},
    "$half": lambda value: "\ud800",
    "$nul": lambda value: {"a\0b": value},
    "$deep": lambda value: _deep(),
    "$tail": lambda value: _own_tail(),
    "$wide": lambda value: [[value] * 1000] * 600,
    "$type": lambda value: int,
    "$function": lambda value: _deep,
}


_ODD_NAMES: Final = [name for name in _OBJECTS if name != "$wide"]


def _object(pairs: list[tuple[str, Any]]) -> Any:
    for name, value in pairs:
        if name in _OBJECTS:
            return _OBJECTS[name](value)
    return dict(pairs)


def _returned(data: bytes) -> Any:
    """Make what an agent may return, odd objects included; noise becomes text."""
    try:
        return json.loads(data, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "surrogateescape")


_AGENT: Final = agent_of("fuzzed", lambda payload: None)
_TURN: Final = HeldTurn(
    Task(namespace="n", id="t", agent="fuzzed", attempt_id="a"), b"null", "w", lambda: 1.0
)


def _result(data: bytes) -> bool:
    command = endings.finish(_TURN, _AGENT, _returned(data), 0.5)
    if isinstance(command, Finish):
        assert content.encode(content.decode_stored(command.result)) == command.result
        return True
    assert isinstance(command, FailTurn)
    msgspec.json.encode(command.error)
    return False


def _result_of(dice: Random) -> bytes:
    inner = json_value(dice)
    name = dice.choice(_ODD_NAMES) if dice.random() < 0.998 else "$wide"
    return inner if dice.random() < 0.6 else b'{"%s":%s}' % (name.encode(), inner)


def _raised(data: bytes) -> BaseException:
    text = data.decode("utf-8", "surrogateescape")
    kind = sum(data[:4]) % 8
    odd = msgspec_number(text)
    made: BaseException = (
        ValueError(text),
        Fail(text),
        Retry(text, after=odd),
        Fail(_Rude()),  # type: ignore[arg-type]
        OSError(5, text),
        BaseExceptionGroup(text, [ValueError(text), ExceptionGroup("x", [Fail(text)])]),
        UnicodeDecodeError("utf-8", data, 0, 1, text),
        type(f"Odd{kind}", (Exception,), {"__str__": lambda self: 5})(text),
    )[kind]
    made.__cause__ = ValueError(text) if kind % 2 else None
    return made


def msgspec_number(text: str) -> float | None:
    """Read a number that an agent may ask for: any at all."""
    try:
        return float(text[-6:])
    except ValueError:
        return (None, float("nan"), float("inf"), -1.0, 1e300)[len(text) % 5]


def _error(data: bytes) -> bool:
    command = endings.fail(_TURN, _AGENT, _raised(data), 0.5)
    kept = msgspec.json.encode(command)
    assert msgspec.json.decode(kept, type=FailTurn) == command
    assert len(command.error.message) <= endings.MESSAGE_LIMIT
    assert len(command.error.traceback or "") <= endings.TRACEBACK_LIMIT
    assert "\0" not in command.error.message + (command.error.traceback or "")
    return command.error.retryable


@dataclasses.dataclass
class _Typed:
    id: int
    name: str = ""
    tags: list[str] = dataclasses.field(default_factory=list)
    kind: Literal["a", "b"] = "a"
    when: datetime.datetime | None = None
    next: _Typed | None = None


class _Struct(msgspec.Struct, forbid_unknown_fields=True):
    a: int | None = None
    b: dict[str, float] | list[int] | str = ""


_SHAPES: Final = [
    Shape.of(kind)
    for kind in (_Typed, _Struct, list[int], dict[str, int], str | None, tuple[int, str], Decimal, bytes)
]
_TYPED: Final = (
    b'{"id":1,"name":"x","tags":["a"],"kind":"b","when":"2026-01-01T00:00:00Z","next":{"id":2}}',
    b'{"id":7}',
    b'{"a":5,"b":{"x":1.5}}',
    b'{"b":[1,2,3]}',
    b"[1,2,3]",
    b'{"a":1,"b":2}',
    b'"text"',
    b"null",
    b'[1,"a"]',
    b'"1.10"',
)


def _typed(data: bytes) -> bool:
    try:
        value = content.decode(data)
    except Refused as refusal:
        return told(refusal)
    fitting = 0
    for shape in _SHAPES:
        try:
            shape.check(value)
            fitting += 1
        except Refused as refusal:
            told(refusal)
    return fitting > 0


_SCHEMAS: Final = (
    *(b"{}", b'{"title":"x"}', b'{"type":["object","array","string","null"]}'),
    *(content.encode(shape.schema()) for shape in _SHAPES),
    b'{"type":"object","properties":{"a":{"minimum":3},"b":{"$ref":"#/$defs/x"}},"$defs":{"x":{"enum":[1,"a"]}}}',
    b'{"anyOf":[{"type":"integer"},{"$ref":"#"}],"required":["a"]}',
    b'{"discriminator":{"propertyName":"a","mapping":{"1":"#/$defs/x"}},"anyOf":[{}],"$defs":{"x":{"const":1}}}',
    b'{"type":["string","null"],"pattern":"^a+$","maxLength":3}',
)


def _schema(data: bytes) -> bool:
    """Read a schema from a store that another program has written."""
    first, _, rest = data.partition(b"\n")
    try:
        schema, value = content.decode(first), content.decode(rest)
        if not isinstance(schema, dict):
            return False
        schema_check.check(value, schema)
    except Refused as refusal:
        return told(refusal)
    return True


def _schema_and_value(dice: Random) -> bytes:
    return dice.choice(_SCHEMAS) + b"\n" + (dice.choice(_TYPED) if dice.random() < 0.7 else json_value(dice))


_NAMES: Final = (
    *(names.agent_name, names.tool_name, names.signal_name, names.channel_name),
    *(names.agent_key, names.idempotency_key, names.namespace_name, names.agent_reference),
)


def _name(data: bytes) -> bool:
    text = data.decode("utf-8", "surrogateescape")
    taken = 0
    for checked in _NAMES:
        try:
            checked(text)
            taken += 1
        except Refused as refusal:
            told(refusal)
    return taken > 0


def _edit(data: bytes) -> bool:
    text = data.decode("utf-8", "surrogateescape")
    try:
        edit = edit_of(text)
        changed = apply_edits({"a": {"b": [1, {"c": 2}]}, "x.y": 1}, (edit,))
        content.encode(changed)
    except Refused as refusal:
        return told(refusal)
    return True


def _option(data: bytes) -> bool:
    """Read a delay, a deadline or a priority, as code may give it."""
    text = data.decode("utf-8", "surrogateescape")
    given: Any = msgspec_number(text) if len(data) % 2 else text
    try:
        microseconds(given, "delay", least=0.0)
    except (Refused, UsageError) as refusal:
        return told(refusal)
    return True


_REFERENCES: Final = (b"coder", b"coder/issue-42", b"a-b_c", b"clerk/A.b:c@d", b"0", b"x" * 64, b"k:9.9@x")
_EDITS: Final = (b"a.b[0]=5", b'["x.y"]=true', b"a.b[1].c=text", b'a.new={"q":[1]}', b"a=null", b'x="y=z"')

TARGETS: Final = (
    Target(name="payload", share=190, valid=json_value, take=_payload),
    Target(name="result", share=130, valid=_result_of, take=_result),
    Target(name="error", share=60, valid=json_value, take=_error),
    Target(name="typed", share=50, valid=one_of(_TYPED), take=_typed),
    Target(name="schema", share=70, valid=_schema_and_value, take=_schema),
    Target(name="name", share=60, valid=one_of(_REFERENCES), take=_name),
    Target(name="edit", share=50, valid=one_of(_EDITS), take=_edit),
    Target(name="option", share=40, valid=one_of((b"1.5", b"0", b"3600", b"86400.25")), take=_option),
)
