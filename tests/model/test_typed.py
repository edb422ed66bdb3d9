"""Annotations of an agent function decide what it is given, and a wrong value names its field."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endwell.errors import BadInput, UsageError
from endwell.model.content import decode_stored, encode
from endwell.model.typed import Shape, Signature, signature_of

if TYPE_CHECKING:
    from somewhere import Context, Unseen  # type: ignore[import-not-found]


class Colour(Enum):
    RED = "red"


class Point(TypedDict):
    x: int


@dataclass
class Item:
    price: int
    when: datetime | None = None


@dataclass
class Box:
    size: int


class Order(msgspec.Struct):
    items: list[Item]
    colour: Colour = Colour.RED


class Account(pydantic.BaseModel):
    name: str
    opened: datetime | None = None
    colours: set[Colour] = set()

    @pydantic.field_validator("name")
    @classmethod
    def no_spaces(cls, name: str) -> str:
        if " " in name:
            raise ValueError("must be one word")
        return name


class Counted(pydantic.BaseModel):
    count: int


class CountedEnvelope(msgspec.Struct):
    inner: Counted


class Envelope(msgspec.Struct):
    account: Account


class Careful(msgspec.Struct):
    size: int

    def __post_init__(self) -> None:
        if self.size > 3:
            raise KeyError("only small ones")


def refusal(shape: Shape, value: Any, what: str = "payload") -> BadInput:
    with pytest.raises(BadInput) as refused:
        shape.check(value, what)
    assert refused.value.code == "bad_payload"
    assert refused.value.hint
    return refused.value


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("annotation", "value", "made"),
    [
        (int, 5, 5),
        (float, 5, 5.0),
        (dict, {"a": 1}, {"a": 1}),
        (list[int], [1], [1]),
        (dict[str, Colour], {"a": "red"}, {"a": Colour.RED}),
        (int | None, None, None),
        (None, None, None),
        (Literal["a"], "a", "a"),
        (datetime, "2026-01-02T12:00:00Z", NOON),
        (UUID, str(UUID(int=1)), UUID(int=1)),
        (Point, {"x": 1}, {"x": 1}),
        (Item, {"price": 1}, Item(1)),
        (Order, {"items": [{"price": 1}]}, Order([Item(1)])),
        (Account, {"name": "a", "opened": "2026-01-02T12:00:00Z"}, Account(name="a", opened=NOON)),
        (Account, {"name": "a", "colours": ["red"]}, Account(name="a", colours={Colour.RED})),
        (list[Account], [{"name": "a"}], [Account(name="a")]),
        (Account | int | None, {"name": "a"}, Account(name="a")),
        (Item | Box, {"size": 1}, Box(1)),
        (Envelope, {"account": {"name": "a"}}, Envelope(Account(name="a"))),
        (Any, {"anything": [1]}, {"anything": [1]}),
        (object, 5, 5),
    ],
)
def test_a_plain_value_becomes_an_instance_of_the_annotation(annotation: Any, value: Any, made: Any) -> None:
    assert Shape.of(annotation).check(value) == made


@pytest.mark.parametrize(
    ("annotation", "value", "field"),
    [
        (int, "5", "payload"),
        (int, 5.0, "payload"),
        (int, True, "payload"),
        (str, 5, "payload"),
        (bool, 1, "payload"),
        (None, 1, "payload"),
        (list[int], [1, "2"], "payload[1]"),
        (dict[str, int], {"a": 1, "b c": "2"}, 'payload["b c"]'),
        (dict[str, list[Item]], {"a": [{"price": "x"}]}, "payload.a[0].price"),
        (Order, {"items": [{"price": "5"}]}, "payload.items[0].price"),
        (Order, {}, "payload.items"),
        (Order, {"items": [], "colour": "green"}, "payload.colour"),
        (Item, {"price": 1, "when": "yesterday"}, "payload.when"),
        (Point, {"x": None}, "payload.x"),
        (Literal["a"], "b", "payload"),
        (Account, {"name": 5}, "payload.name"),
        (list[Counted], [{"count": "5"}], "payload[0].count"),
        (CountedEnvelope, {"inner": {"count": "5"}}, "payload.inner"),
        (Account, {"name": "two words"}, "payload.name"),
        (Account, {"name": "a", "opened": "yesterday"}, "payload.opened"),
        (list[Account], [{"name": "a"}, {}], "payload[1].name"),
        (Account | int, {"name": "a", "opened": "yesterday"}, "payload.opened"),
        (Envelope, {"account": {"name": 5}}, "payload.account"),
        (Careful, {"size": 5}, "payload"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_field(annotation: Any, value: Any, field: str) -> None:
    assert refusal(Shape.of(annotation), value).field == field


def test_a_refusal_says_what_was_expected_and_what_came() -> None:
    refused = refusal(Shape.of(Order), {"items": [{"price": "5"}]}, "result")
    assert refused.message == 'result.items[0].price should be an integer, not "5"'
    assert "one word" in refusal(Shape.of(Account), {"name": "a b"}).message
    assert "only small ones" in refusal(Shape.of(Careful), {"size": 5}).message


@pytest.mark.parametrize("annotation", [int, Order, Account, list[Account], Envelope, dict[int, str]])
def test_a_schema_can_be_stored_and_read_back(annotation: Any) -> None:
    schema = Shape.of(annotation).schema()
    assert schema is not None
    assert decode_stored(encode(schema)) == schema


def test_where_everything_fits_there_is_no_schema() -> None:
    assert Shape.of(Any).schema() is None
    assert Shape.of().schema() is None


class Unmakeable:
    pass


@pytest.mark.parametrize("annotation", [Unmakeable, list[Unmakeable], "Order", 5])
def test_a_type_that_cannot_come_from_json_is_refused_when_declared(annotation: Any) -> None:
    with pytest.raises(UsageError) as refused:
        Shape.of(annotation)
    assert "cannot be made from JSON" in refused.value.message


@settings(deadline=None)
@given(
    st.builds(
        Order,
        items=st.lists(st.builds(Item, price=st.integers(-(2**63), 2**63 - 1), when=st.none())),
        colour=st.sampled_from(Colour),
    )
)
def test_a_typed_payload_arrives_typed(order: Order) -> None:
    assert Shape.of(Order).check(decode_stored(encode(order))) == order


# Signatures


async def full(ctx: Context, order: Order) -> list[Item]:
    return order.items


def plain(order: Order) -> int:
    return 1


def renamed(context: Context, order: Order) -> None: ...


def only_context(ctx): ...  # type: ignore[no-untyped-def]


def nothing() -> NoReturn:
    raise NotImplementedError


def with_default(ctx: Any, order: Order | None = None, *, verbose: bool = False) -> None: ...


class Agent:
    async def method(self, ctx: Context, order: Order) -> int:
        return 1

    async def __call__(self, order: Order) -> int:
        return 1


def summary(signature: Signature) -> tuple[Any, bool, bool, bool]:
    payload = signature.payload.annotation if signature.takes_payload else None
    return payload, signature.wants_context, signature.is_async, signature.payload_optional


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (full, (Order, True, True, False)),
        (plain, (Order, False, False, False)),
        (renamed, (Order, True, False, False)),
        (only_context, (None, True, False, False)),
        (nothing, (None, False, False, False)),
        (with_default, (Order | None, True, False, True)),
        (Agent().method, (Order, True, True, False)),
        (Agent(), (Order, False, True, False)),
        (functools.partial(full), (Order, True, True, False)),
        (lambda payload: payload, (Any, False, False, False)),
    ],
)
def test_a_function_says_how_it_wants_to_be_called(function: Any, expected: Any) -> None:
    assert summary(signature_of(function)) == expected


def test_the_result_is_typed_too() -> None:
    assert signature_of(full).result.check([{"price": 1}]) == [Item(1)]
    assert signature_of(lambda: None).result.schema() is None
    assert signature_of(nothing).result.schema() is None


def test_a_function_without_payload_takes_only_null() -> None:
    shape = signature_of(nothing).payload
    assert shape.check(None) is None
    assert refusal(shape, {"a": 1}).field == "payload"


def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    @functools.wraps(full)
    async def wrapper(*arguments: Any) -> Any:
        return await full(*arguments)

    assert summary(signature_of(wrapper)) == (Order, True, True, False)


def test_a_type_of_the_enclosing_function_is_found_when_the_function_uses_it() -> None:
    class Local(msgspec.Struct):
        size: int

    def uses(payload: Local) -> int:
        return Local(payload.size).size

    assert signature_of(uses).payload.annotation is Local


def test_an_annotation_that_cannot_be_found_counts_as_any_and_is_reported() -> None:
    def unseen(ctx: Context, payload: Unseen) -> int:
        return 1

    signature = signature_of(unseen)
    assert signature.payload.schema() is None
    assert signature.result.annotation is int
    assert signature.unresolved == ("Unseen",)


def generator(order: Order) -> Any:
    yield 1


async def stream(order: Order) -> AsyncIterator[int]:
    yield 1


def two_payloads(ctx: Any, one: int, two: int) -> None: ...


def any_number(*payloads: int) -> None: ...


def any_names(**payloads: int) -> None: ...


def by_name_only(ctx: Any, *, order: Order) -> None: ...


def context_last(order: Order, ctx: Context) -> None: ...


def unmakeable(order: Unmakeable) -> None: ...


@pytest.mark.parametrize(
    "function",
    [generator, stream, two_payloads, any_number, any_names, by_name_only, context_last, unmakeable, Order],
)
def test_a_function_that_cannot_be_called_is_refused_by_name(function: Any) -> None:
    with pytest.raises(UsageError) as refused:
        signature_of(function)
    assert function.__name__ in refused.value.message


@pytest.mark.parametrize("thing", [None, 5, "text"])
def test_only_a_function_can_be_an_agent(thing: Any) -> None:
    with pytest.raises(UsageError, match="is not a function"):
        signature_of(thing)
