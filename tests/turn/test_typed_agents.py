"""Typed payloads and results: checked on the way in, with an error that names the field."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pydantic
import pytest

from endwell import BadInput, TaskFailed
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, terminal


@dataclasses.dataclass
class Ticket:
    id: int
    title: str
    tags: list[str] = dataclasses.field(default_factory=list)


class Order(msgspec.Struct):
    id: int
    items: list[int]


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


class Explosive(pydantic.BaseModel):
    x: int

    @pydantic.model_validator(mode="after")
    def explode(self) -> Explosive:
        raise ZeroDivisionError("in the validator")


def typed_agents(world: World) -> None:
    @world.app.agent("ticket")
    async def ticket(payload: Ticket) -> Ticket:
        assert isinstance(payload, Ticket)
        return dataclasses.replace(payload, title=payload.title.upper())

    @world.app.agent("order")
    def order(payload: Order) -> Order:
        assert isinstance(payload, Order)
        return Order(payload.id, sorted(payload.items))

    @world.app.agent("person")
    async def person(payload: Person) -> Person:
        assert isinstance(payload, Person)
        return Person(name=payload.name, age=payload.age + 1)


@pytest.mark.parametrize(
    ("agent", "payload", "result"),
    [
        ("ticket", Ticket(1, "a", ["x"]), Ticket(1, "A", ["x"])),
        ("ticket", {"id": 1, "title": "a"}, Ticket(1, "A")),
        ("order", Order(1, [3, 1]), Order(1, [1, 3])),
        ("order", {"id": 1, "items": [2, 1]}, Order(1, [1, 2])),
        ("person", Person(name="Ada", age=36), Person(name="Ada", age=37)),
        ("person", {"name": "Ada", "age": 36}, Person(name="Ada", age=37)),
    ],
)
async def test_agent_and_caller_get_typed_values(
    sqlite_world: World, agent: str, payload: Any, result: Any
) -> None:
    typed_agents(sqlite_world)
    await sqlite_world.working()
    assert await (await sqlite_world.submitted(agent, payload)).result(PATIENCE_SECONDS) == result


@pytest.mark.parametrize(
    ("agent", "payload", "field"),
    [
        ("ticket", {"id": "1", "title": "a"}, "payload.id"),
        ("ticket", {"title": "a"}, "payload.id"),
        ("ticket", {"id": 1, "title": "a", "tags": ["x", 2]}, "payload.tags[1]"),
        ("order", {"id": 1, "items": [1, None]}, "payload.items[1]"),
        ("order", [1], "payload"),
        ("person", {"name": "Ada", "age": -1}, "payload.age"),
        ("person", {"name": 5, "age": 1}, "payload.name"),
    ],
)
async def test_a_payload_of_the_wrong_type_is_refused_at_submit_naming_the_field(
    sqlite_world: World, agent: str, payload: Any, field: str
) -> None:
    typed_agents(sqlite_world)
    with pytest.raises(BadInput) as refused:
        await sqlite_world.submitted(agent, payload)
    assert (refused.value.code, refused.value.field) == ("bad_payload", field)
    assert await sqlite_world.counts() == {}


@pytest.mark.parametrize(
    ("payload", "culprit"),
    [({"id": "1", "items": []}, "payload.id"), ({"id": 1}, "payload.items is missing")],
)
@pytest.mark.covers("S4.37", "S4.38", "S4.45")
async def test_a_payload_stored_before_its_type_changed_becomes_a_dead_letter_without_a_retry(
    world: World, payload: dict[str, Any], culprit: str
) -> None:
    @world.app.agent("clerk")
    async def before(payload: dict[str, Any]) -> None: ...

    handle = await world.submitted("clerk", payload)
    del world.app.agents["clerk"]

    @world.app.agent("clerk")
    async def after(payload: Order) -> None:
        raise AssertionError("must not be called with what it cannot take")

    await world.working()
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)

    task = failed.value.task
    assert (task.reason, task.dead_letter, task.dispatch_count) == ("bad_payload", "open", 1)
    assert culprit in failed.value.deliverable["error"]["message"]
    assert (await world.store.dead_letter(world.namespace, handle.id)).reason == "bad_payload"
    history = await world.history(handle)
    assert terminal(history) == ["task.failed"]
    assert history[-1] == "task.dlq"


async def test_a_validator_that_raises_anything_is_a_bad_payload(world: World) -> None:
    @world.app.agent("explosive")
    async def explosive(payload: Any) -> None: ...

    handle = await world.submitted("explosive", {"x": 1})
    del world.app.agents["explosive"]

    @world.app.agent("explosive")
    async def with_type(payload: Explosive) -> None: ...

    await world.working()
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.task.reason == "bad_payload"


async def test_a_result_that_is_not_what_the_agent_promises_fails_the_turn_and_is_retried(
    world: World,
) -> None:
    answers: list[Any] = ["many", 7]

    @world.app.agent("counter")
    async def counter() -> int:
        return answers.pop(0)  # type: ignore[no-any-return]  # that is the point

    await world.working()
    handle = await world.submitted("counter")
    task = await world.in_status(handle, "queued")
    while task.retry_count == 0:
        task = await world.in_status(handle, "queued")
    assert task.reason == "bad_result"
    world.clock.advance(10)
    assert await handle.result(PATIENCE_SECONDS) == 7
