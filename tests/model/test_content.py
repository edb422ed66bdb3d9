"""Content is canonical bytes; a value that cannot be stored and read back unchanged is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endwell.errors import BadInput
from endwell.model.content import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_WRITTEN_BYTES,
    clean_text,
    decode,
    decode_stored,
    encode,
    fingerprint,
    printable_text,
    safe_repr,
    safe_str,
)

storable_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
storable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable_text,
    lambda inner: st.lists(inner) | st.dictionaries(storable_text, inner),
    max_leaves=20,
)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Kind(StrEnum):
    FAST = "fast"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Line:
    price: float
    inner: Any = None


class Order(msgspec.Struct, tag="order", rename="camel"):
    line_items: list[Any]
    note: str | msgspec.UnsetType = msgspec.UNSET


class Pair(msgspec.Struct, array_like=True):
    left: Any
    right: Any


class Model(pydantic.BaseModel):
    from_: Any = pydantic.Field(alias="from")


class Tagged(pydantic.BaseModel):
    tags: set[str]


def refusal(call: Callable[[], Any]) -> BadInput:
    with pytest.raises(BadInput) as refused:
        call()
    assert refused.value.hint
    assert refused.value.field
    assert len(refused.value.message) < 500
    return refused.value


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# Writing


def test_equal_content_has_equal_bytes_in_any_order_of_its_keys() -> None:
    assert encode({"b": [1, {"d": 2, "c": 3}], "a": None}) == b'{"a":null,"b":[1,{"c":3,"d":2}]}'
    assert encode({"a": None, "b": [1, {"c": 3, "d": 2}]}) == b'{"a":null,"b":[1,{"c":3,"d":2}]}'


def test_an_integer_and_a_float_stay_different() -> None:
    assert encode([1, 1.0, -0.0]) == b"[1,1.0,-0.0]"
    assert [type(item) for item in decode(encode([1, 1.0]))] == [int, float]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        ({Kind.FAST: Kind.FAST}, {"fast": "fast"}),
        (Line(1.5, Line(2.0)), {"price": 1.5, "inner": {"price": 2.0, "inner": None}}),
        (Order([Colour.RED]), {"type": "order", "lineItems": ["red"]}),
        (Pair(1, Line(2.0)), [1, {"price": 2.0, "inner": None}]),
        ([Model.model_validate({"from": {"when": date(2026, 1, 2)}})], [{"from": {"when": "2026-01-02"}}]),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal("1.10"), "1.10"),
        (Decimal("1e999"), "1E+999"),
        ("é\u2028\n😀 \\u0000", "é\u2028\n😀 \\u0000"),
        ([2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
    ],
)
def test_a_value_of_a_known_type_is_written_as_json(value: Any, written: Any) -> None:
    assert json.loads(encode(value)) == written


class Evil:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "code", "field"),
    [
        ({"items": [{"price": 1}, {"price": float("nan")}]}, "not_finite_number", "payload.items[1].price"),
        ([float("inf")], "not_finite_number", "payload[0]"),
        (Decimal("-Infinity"), "not_finite_number", "payload"),
        (Decimal("sNaN"), "not_finite_number", "payload"),
        ({"a": Line(float("nan"))}, "not_finite_number", "payload.a.price"),
        ({"a": ["x", "\ud800"]}, "bad_text", "payload.a[1]"),
        ({"a": {"b\0": 1}}, "bad_text", "payload.a"),
        ({"a": "x\0"}, "bad_text", "payload.a"),
        ({"a": 2**63}, "integer_too_large", "payload.a"),
        ({"a": -(2**63) - 1}, "integer_too_large", "payload.a"),
        ({"a": 10**5000}, "integer_too_large", "payload.a"),
        ({"a b": object()}, "not_json", 'payload["a b"]'),
        ([{1, 2}], "not_json", "payload[0]"),
        (b"bytes", "not_json", "payload"),
        ({"a": {1: 2}}, "not_json", "payload.a"),
        ({None: 2}, "not_json", "payload"),
        ({"a": Line}, "not_json", "payload.a"),
        ({"a": Evil()}, "not_json", "payload.a"),
        ({"a": lambda: None}, "not_json", "payload.a"),
        ({"a": Tagged(tags={"x", "y"})}, "not_json", "payload.a"),
        (nested(65), "too_deep", None),
        ("x" * MAX_BYTES, "payload_too_large", "payload"),
    ],
)
def test_a_value_that_json_cannot_keep_is_refused_with_its_place(
    value: Any, code: str, field: str | None
) -> None:
    refused = refusal(lambda: encode(value))
    assert refused.code == code
    assert field is None or refused.field == field


def test_the_limits_themselves_are_allowed() -> None:
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    assert len(encode("x" * (MAX_BYTES - 2))) == MAX_BYTES
    assert len(decode(b" " * (MAX_BYTES - 2) + b'""')) == 0


def test_a_value_that_contains_itself_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    line = Line(1.0)
    line.inner = [line]
    model = Model.model_validate({"from": 1})
    model.from_ = model
    assert refusal(lambda: encode(cycle)).code == "too_deep"
    assert refusal(lambda: encode(line)).code == "too_deep"
    assert refusal(lambda: encode(model)).code == "not_json"


def test_a_small_value_that_would_be_enormous_when_written_is_refused_in_time() -> None:
    bomb: Any = "x"
    for _ in range(60):
        bomb = [bomb, bomb]
    started = time.process_time()
    assert refusal(lambda: encode(bomb)).code == "payload_too_large"
    assert time.process_time() - started < 10


def test_a_refusal_names_what_was_being_written() -> None:
    refused = refusal(lambda: encode({"total": float("nan")}, what="result"))
    assert refused.message == "result.total is nan, which JSON cannot hold"


def test_writing_content_does_not_import_pydantic() -> None:
    program = "import sys, endwell.model.typed as t; t.Shape.of(int); sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@settings(deadline=None)
@given(storable)
def test_a_written_task_reads_back_the_same(value: Any) -> None:
    data = encode(value)
    assert decode(data) == value
    assert decode_stored(data) == value
    assert encode(decode_stored(data)) == data


def turned_round(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: turned_round(value[key]) for key in reversed(value)}
    return [turned_round(item) for item in value] if isinstance(value, list) else value


@settings(deadline=None)
@given(storable)
def test_the_order_of_keys_never_shows(value: Any) -> None:
    assert fingerprint(encode(turned_round(value))) == fingerprint(encode(value))


anything = st.recursive(
    st.none()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.sets(st.integers())
    | st.decimals(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    max_leaves=10,
)


@settings(deadline=None)
@given(anything)
def test_a_value_is_kept_exactly_or_refused(value: Any) -> None:
    try:
        data = encode(value)
    except BadInput:
        return
    assert encode(decode(data)) == data


# Reading


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [
        (b"", "bad_json", "payload"),
        (b"{'a': 1}", "bad_json", "payload"),
        (b'"\xff"', "bad_json", "payload"),
        (b'"a\0"', "bad_json", "payload"),
        ("\ufeff1", "bad_json", "payload"),
        (b"1 2", "bad_json", "payload"),
        (b'{"a": [{"b": 1, "c": 2, "b": 3}]}', "duplicate_key", "payload.a[0]"),
        (b'{"a": NaN}', "not_finite_number", "payload.a"),
        (b"[-Infinity]", "not_finite_number", "payload[0]"),
        (b"[1e999]", "not_finite_number", "payload[0]"),
        (b'{"a": ' + b"9" * 5000 + b"}", "integer_too_large", "payload.a"),
        (b"-9223372036854775809", "integer_too_large", "payload"),
        (rb'["\ud800"]', "bad_text", "payload[0]"),
        (rb'{"a": "\u0000"}', "bad_text", "payload.a"),
        ('"\ud800"', "bad_text", "payload"),
        (b"[" * 65 + b"]" * 65, "too_deep", "payload"),
        (b'"' + b"x" * MAX_BYTES + b'"', "payload_too_large", "payload"),
    ],
)
def test_text_from_outside_that_cannot_be_trusted_is_refused(text: Any, code: str, field: str) -> None:
    refused = refusal(lambda: decode(text))
    assert (refused.code, refused.field) == (code, field)


@pytest.mark.parametrize("letter", ["a", "é", "漢"])
def test_text_from_outside_is_measured_as_stored_not_as_written_with_escapes(letter: str) -> None:
    most = (MAX_BYTES - 2) // len(letter.encode())
    escaped = f"\\u{ord(letter):04x}"
    assert decode(f'  "{escaped * most}"') == letter * most
    assert refusal(lambda: decode(f'"{escaped * (most + 1)}"')).code == "payload_too_large"


def test_text_from_outside_longer_than_any_content_could_be_written_is_refused_unread() -> None:
    assert refusal(lambda: decode(b"[" * (MAX_WRITTEN_BYTES + 1))).code == "payload_too_large"


def test_bad_json_is_located_in_bytes() -> None:
    assert "at byte 7" in refusal(lambda: decode('["é", x]')).message
    assert "at byte 4" in refusal(lambda: decode(b'["aa\xff"]')).message


def test_a_repeated_key_is_named() -> None:
    assert "'b'" in refusal(lambda: decode('{"b": 1, "b": 1}')).message


def test_brackets_inside_text_are_not_nesting() -> None:
    value = ["[" * 100, '"' + "{" * 100, "\\"]
    assert decode(json.dumps(value)) == value


def test_escaped_text_from_outside_is_read() -> None:
    assert decode(rb'"\ud83d\ude00 \u00e9 \\u0000"') == "😀 é \\u0000"


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 500_000 + b"]" * 500_000,
        b'"' + b'\\"' * 500_000,
        b'"' * 10**6,
    ],
)
def test_hostile_text_is_answered_at_once(text: bytes) -> None:
    started = time.process_time()
    refusal(lambda: decode(text))
    assert time.process_time() - started < 0.5


@settings(deadline=None)
@given(st.binary() | st.text(st.characters()) | st.text('[]{}":,\\u0d8e+-.NaInfity1 tr'))
def test_arbitrary_input_is_read_or_refused_and_never_worse(text: bytes | str) -> None:
    try:
        value = decode(text)
    except BadInput:
        return
    assert decode(encode(value)) == value


# Texts


def test_a_clean_text_can_be_kept_by_every_store() -> None:
    assert clean_text("a\0b\ud800c\n\té") == "a\ufffdb\ufffdc\n\té"


def test_a_long_text_is_cut_and_says_so() -> None:
    cut = clean_text("x" * 1000, limit=100)
    kept = cut.index("…")
    assert f"({1000 - kept} characters cut)" in cut
    assert len(cut) <= 100


@settings(deadline=None)
@given(st.text(st.characters()), st.integers(0, 60))
def test_a_clean_text_keeps_its_limit_and_stays_clean(text: str, limit: int) -> None:
    clean = clean_text(text, limit)
    assert len(clean) <= limit
    assert clean_text(clean, limit) == clean
    assert "\0" not in clean
    clean.encode()


class Hopeless(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    def __repr__(self) -> str:
        return 5  # type: ignore[return-value]


class Verbose:
    def __repr__(self) -> str:
        return "\ud800" * 10_000_000


def test_an_object_that_cannot_describe_itself_is_described_anyway() -> None:
    assert safe_str(Hopeless()) == "<Hopeless whose str() raised SystemExit>"
    assert safe_repr(Hopeless()) == "<Hopeless whose repr() raised TypeError>"
    assert len(safe_repr(Verbose())) <= 4000
    assert safe_str(ValueError("plain")) == "plain"


def test_a_terminal_sees_no_control_characters() -> None:
    text = "a\x1b[31m\r\n\t\u2028\u202e\u2066\x9b\x7f\ud800é😀\\"
    assert printable_text(text) == "a\\x1b[31m\\r\\n\\t\\u2028\\u202e\\u2066\\x9b\\x7f\\ud800é😀\\"
    assert printable_text("a\n\tb\r", keep_lines=True) == "a\n\tb\\r"
