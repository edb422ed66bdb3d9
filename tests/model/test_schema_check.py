"""A payload can be refused knowing only the agent's schema, and the refusal names the field."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from endwell.errors import BadInput
from endwell.model.schema_check import check
from endwell.model.typed import Shape


def refusal(value: Any, schema: dict[str, Any], what: str = "payload") -> BadInput:
    with pytest.raises(BadInput) as refused:
        check(value, schema, what)
    assert refused.value.code == "bad_payload"
    assert refused.value.hint
    return refused.value


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [0, -5], [5.0, True, "5", None]),
        ({"type": "number"}, [0, 1.5], [True, "1"]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"type": "boolean"}, [True], [1, "true"]),
        ({"type": "array", "items": {"type": "integer"}}, [[], [1]], [{}, ["a"]]),
        ({"prefixItems": [{"type": "integer"}], "items": False}, [[], [1]], [["a"], [1, 2]]),
        ({"type": "object", "required": ["a"]}, [{"a": 1}], [{}, []]),
        ({"properties": {"a": {"type": "null"}}, "additionalProperties": False}, [{"a": None}], [{"b": 1}]),
        ({"additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "x"}]),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, [{"a": 1}], []),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["a"]),
        ({"oneOf": [{"type": "integer"}, {"const": 5}]}, [5, 6], ["a"]),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [1, 3], [0, 4]),
        ({"enum": [1, "a", None]}, [1, "a", None], [True, "b", 1.0]),
        ({"const": "x"}, ["x"], ["y"]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2, "a"], [1, 3]),
        ({"multipleOf": 3}, [6], [7]),
        ({"minLength": 1, "maxLength": 2}, ["é", "😀😀"], ["", "abc"]),
        ({"pattern": "^(a+)+$"}, ["a" * 40 + "b"], []),
        ({"minItems": 1, "maxItems": 2}, [[1]], [[], [1, 2, 3]]),
        ({"minProperties": 1}, [{"a": 1}], [{}]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, [1], ["a"]),
        ({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {"const": 1}}}}, [1], [2]),
        ({"$ref": "#/$defs/missing"}, [1], []),
        ({"$ref": "#"}, [1, [1]], []),
        ({"anyOf": [{"$ref": "#"}, {"type": "integer"}]}, [1], []),
        ({"format": "date-time", "unheard-of": 5}, ["x", 1], []),
    ],
)
def test_each_keyword_means_what_it_says(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    for value in good:
        check(value, schema)
    for value in bad:
        refusal(value, schema)


ORDER = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "integer"}}}}
    },
    "required": ["items"],
}


def test_a_refusal_names_the_field_and_says_what_it_should_be() -> None:
    refused = refusal({"items": [{"price": 1}, {"price": "5"}]}, ORDER)
    assert refused.field == "payload.items[1].price"
    assert refused.message == 'payload.items[1].price should be an integer, not "5"'


def test_a_missing_field_is_named() -> None:
    assert refusal({}, ORDER, "result").message == "result.items is missing"


def test_the_text_in_a_refusal_is_escaped_and_cut() -> None:
    message = refusal({"items": "\x1b[2J" + "x" * 10_000}, ORDER).message
    assert "\\x1b[2J" in message
    assert len(message) < 200


@pytest.mark.parametrize("schema", [{"const": "\x1b" + "a" * 10_000}, {"enum": ["red"] * 10_000}])
def test_a_refusal_escapes_and_cuts_the_schemas_text(schema: dict[str, Any]) -> None:
    message = refusal("x", schema).message
    assert message.startswith(('payload should be "\\x1baaa', 'payload should be "red" or "red"'))
    assert message.endswith(', not "x"')
    assert len(message) < 400


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


def test_in_a_tagged_union_the_tag_decides_which_member_refuses() -> None:
    schema = Shape.of(list[Cat | Dog]).schema()
    assert schema is not None
    assert refusal([{"type": "cat", "lives": "9"}], schema).field == "payload[0].lives"
    assert refusal([{"type": "cow"}], schema).message == 'payload[0].type should be cat or dog, not "cow"'
    assert refusal([{}], schema).field == "payload[0].type"
    assert refusal([5], schema).field == "payload[0]"


def test_a_union_says_everything_that_would_have_fitted() -> None:
    schema = Shape.of(int | None).schema()
    assert schema is not None
    assert refusal("a", schema).message == 'payload should be an integer or null, not "a"'


def test_a_schema_or_value_that_contains_itself_is_answered() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    schema = {"$ref": "#/$defs/L", "$defs": {"L": {"type": "array", "items": {"$ref": "#/$defs/L"}}}}
    check([[], [[]]], schema)
    refusal([[], [["a"]]], schema)
    check(cycle, schema)
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    refusal(deep, schema)


def test_a_union_that_refers_to_itself_is_answered_in_time() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Any"}, "end": {"type": "integer"}}}
    schema = {
        "$ref": "#/$defs/Any",
        "$defs": {
            "A": node,
            "B": dict(node),
            "Any": {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]},
        },
    }
    value: Any = {"end": "wrong"}
    for _ in range(40):
        value = {"next": value}
    started = time.process_time()
    assert refusal(value, schema).message.endswith('should be an integer, not "wrong"')
    assert time.process_time() - started < 1


# Agreement with the typed check


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(TypedDict):
    x: int
    y: float


@dataclass
class Line:
    price: int
    colour: Colour | None = None
    tags: list[str] = field(default_factory=list)


class Basket(msgspec.Struct, forbid_unknown_fields=True):
    lines: list[Line]
    counts: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    kind: Literal["new", "old", 3] = "new"


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class Account(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: Annotated[str, pydantic.Field(min_length=1)]
    balance: float | None = None
    parents: list[Account] = []


class Paid(pydantic.BaseModel):
    state: Literal["paid"]
    account: Account


class Open(pydantic.BaseModel):
    state: Literal["open"]


TYPES: list[Any] = [
    int,
    float,
    str | None,
    list[int | str],
    dict[str, list[bool]],
    tuple[int, str],
    Colour,
    Literal["a", 1, None],
    Point,
    Line,
    Basket,
    list[Basket],
    Tree,
    Cat | Dog,
    Account,
    list[Account] | None,
    Annotated[Paid | Open, pydantic.Field(discriminator="state")],
]
FIELDS = [
    "x",
    "y",
    "price",
    "colour",
    "tags",
    "lines",
    "counts",
    "kind",
    "value",
    "children",
    "type",
    "lives",
]
FIELDS += ["name", "balance", "parents", "state", "account"]
words = st.sampled_from(["red", "a", "new", "cat", "dog", "paid", "open", "", "other"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)
account = {"name": "a", "balance": 1, "parents": [{"name": "b"}]}
NEAR_MISSES: list[Any] = [
    {"x": 1, "y": 2},
    {"x": 1, "y": 2.5, "more": 1},
    {"price": 1, "colour": "red", "tags": ["a"]},
    {"price": 1, "colour": "green"},
    {"lines": [{"price": 1}], "counts": {"a": 0}, "kind": 3},
    {"lines": [], "counts": {"a": -1}},
    {"lines": [], "more": 1},
    {"value": 1, "children": [{"value": 2, "children": [{"value": "3"}]}]},
    {"value": 1, "children": [{"value": 2}]},
    {"type": "dog", "name": "a"},
    {"type": "cat", "name": "a"},
    {"type": 5},
    account,
    [account, account],
    {**account, "more": 1},
    {"state": "paid", "account": account},
    {"state": "paid", "account": {"name": ""}},
    {"state": "open"},
    [{"lines": [{"price": 1}]}],
    [1, "a"],
    {"a": [True], "b": []},
]


@given(st.sampled_from(TYPES), values | st.sampled_from(NEAR_MISSES))
@settings(max_examples=400, deadline=None)
@example(Tree, {"value": 1, "children": [{"value": "2"}]})
def test_the_schema_and_the_type_agree_on_what_fits(annotation: Any, value: Any) -> None:
    shape = Shape.of(annotation)
    schema = shape.schema()
    assert schema is not None
    assert fits(lambda: check(value, schema)) == fits(lambda: shape.check(value))


def test_nested_choices_are_checked_without_trying_every_combination() -> None:
    levels = {
        f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}, {"items": {"$ref": f"#/$defs/L{n + 1}"}}]}
        for n in range(40)
    }
    schema = {"$ref": "#/$defs/L0", "$defs": {**levels, "L40": {"type": "integer"}}}
    check("a", schema)


@pytest.mark.parametrize("annotation", TYPES)
def test_each_type_finds_a_value_that_fits_and_one_that_does_not(annotation: Any) -> None:
    shape = Shape.of(annotation)
    samples = [1, 1.5, None, "red", "a", [1, "a"], {}, {"a": [True]}, *NEAR_MISSES, object()]
    answers = {fits(partial(shape.check, sample)) for sample in samples}
    assert answers == {True, False}


def fits(call: Callable[[], Any]) -> bool:
    try:
        call()
    except BadInput:
        return False
    return True
