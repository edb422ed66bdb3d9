"""Bad input at submit: a clear error with a stable code, and nothing stored."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from endwell import BadInput, Endwell, IdempotencyConflict, Refused, UnknownAgent
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def shared(times: int) -> Any:
    """Small in memory, 2**times items when written out."""
    value: Any = [1]
    for _ in range(times):
        value = [value, value]
    return value


def endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class Opaque: ...


BAD_PAYLOADS: list[tuple[Any, str]] = [
    ("x" * (1024 * 1024), "payload_too_large"),
    ({"n": list(range(600_000))}, "payload_too_large"),
    (shared(40), "payload_too_large"),
    (nested(65), "too_deep"),
    (nested(100_000), "too_deep"),
    (endless(), "too_deep"),
    (float("nan"), "not_finite_number"),
    ({"a": [float("inf")]}, "not_finite_number"),
    (float("-inf"), "not_finite_number"),
    ("\ud800", "bad_text"),
    ({"\udfff": 1}, "bad_text"),
    ("nul\x00", "bad_text"),
    ({"nul\x00": 1}, "bad_text"),
    (2**63, "integer_too_large"),
    (-(2**63) - 1, "integer_too_large"),
    (10**5000, "integer_too_large"),
    ({1: "number as key"}, "not_json"),
    (Opaque(), "not_json"),
    ({"a": b"bytes"}, "not_json"),
    ({1, 2}, "not_json"),
]


@pytest.fixture
def clerk(sqlite_world: World) -> World:
    @sqlite_world.app.agent("clerk")
    async def run(payload: Any = None) -> None: ...

    return sqlite_world


async def nothing_is_stored(world: World) -> bool:
    return await world.counts() == {}


@pytest.mark.parametrize(
    ("payload", "code"), BAD_PAYLOADS, ids=[f"{n}-{c}" for n, (_, c) in enumerate(BAD_PAYLOADS)]
)
async def test_a_payload_that_cannot_be_stored_is_refused(clerk: World, payload: Any, code: str) -> None:
    with pytest.raises(BadInput) as refused:
        await clerk.submitted("clerk", payload)
    assert refused.value.code == code
    assert refused.value.field is not None
    assert refused.value.hint
    assert await nothing_is_stored(clerk)


@pytest.mark.parametrize(
    "payload", [nested(64), 2**63 - 1, -(2**63), "x" * (1024 * 1024 - 2), "\U0001f600", None]
)
async def test_a_payload_just_within_the_limits_returns_unchanged(clerk: World, payload: Any) -> None:
    @clerk.app.agent("echo")
    async def echo(payload: Any) -> Any:
        return payload

    await clerk.working()
    assert await (await clerk.submitted("echo", payload)).result(PATIENCE_SECONDS) == payload


BAD_TIMES = [
    -1,
    -0.001,
    float("nan"),
    float("inf"),
    1e12,
    10**400,
    "5",
    True,
    timedelta(days=-1),
    timedelta.max,
]


@pytest.mark.parametrize("delay", BAD_TIMES, ids=repr)
async def test_an_impossible_delay_is_refused(clerk: World, delay: Any) -> None:
    with pytest.raises(BadInput) as refused:
        await clerk.submitted("clerk", delay=delay)
    assert (refused.value.code, refused.value.field) == ("bad_delay", "delay")
    assert await nothing_is_stored(clerk)


@pytest.mark.parametrize("deadline", [0, *BAD_TIMES], ids=repr)
async def test_a_deadline_that_makes_no_sense_is_refused(clerk: World, deadline: Any) -> None:
    with pytest.raises(BadInput) as refused:
        await clerk.submitted("clerk", deadline=deadline)
    assert (refused.value.code, refused.value.field) == ("bad_deadline", "deadline")
    assert await nothing_is_stored(clerk)


@pytest.mark.parametrize("priority", [-10, 10, 1.5, "high", True, None, 10**5000], ids=lambda p: str(type(p)))
async def test_an_impossible_priority_is_refused(clerk: World, priority: Any) -> None:
    with pytest.raises(BadInput) as refused:
        await clerk.submitted("clerk", priority=priority)
    assert (refused.value.code, refused.value.field) == ("bad_priority", "priority")
    assert await nothing_is_stored(clerk)


BAD_NAMES = [
    "",
    "Clerk",
    "clerk!",
    "../clerk",
    "a" * 65,
    "clerk\x00",
    "clerk\n",
    "clerk//k",
    "clerk/",
    "-clerk",
    5,
    None,
]


@pytest.mark.parametrize("agent", BAD_NAMES, ids=repr)
async def test_a_name_outside_the_contract_is_refused(clerk: World, agent: Any) -> None:
    with pytest.raises(BadInput) as refused:
        await clerk.submitted(agent)
    assert refused.value.code == "bad_name"
    assert await nothing_is_stored(clerk)


@pytest.mark.parametrize("key", ["", "with space", "a" * 129, "ünïcode", "new\nline", 7], ids=repr)
async def test_a_key_outside_the_contract_is_refused(clerk: World, key: Any) -> None:
    for options in ({"key": key}, {"channel": key}):
        with pytest.raises(BadInput) as refused:
            await clerk.submitted("clerk", **options)
        assert refused.value.code == "bad_name"
    assert await nothing_is_stored(clerk)


@pytest.mark.parametrize("name", ["Clerk", "", "a b", "x" * 65])
def test_an_agent_cannot_be_registered_under_such_a_name(sqlite_url: str, name: str) -> None:
    with pytest.raises(BadInput) as refused:
        Endwell(sqlite_url).agent(name)
    assert refused.value.code == "bad_name"
    with pytest.raises(BadInput):
        Endwell(sqlite_url, namespace="no/slash")


async def test_an_unregistered_agent_is_refused_and_the_known_agents_are_named(clerk: World) -> None:
    await clerk.registered("clerk")
    with pytest.raises(UnknownAgent) as refused:
        await clerk.submitted("clark")
    assert (refused.value.code, refused.value.field) == ("unknown_agent", "agent")
    assert "clerk" in (refused.value.hint or "")
    assert await nothing_is_stored(clerk)


@pytest.mark.covers("S4.32", "S4.13")
async def test_one_key_for_two_payloads_is_a_conflict(clerk: World) -> None:
    @clerk.app.agent("other")
    async def other(payload: Any) -> None: ...

    first = await clerk.submitted("clerk", {"a": 1}, key="order-1")
    for agent, payload in (("clerk", {"a": 2}), ("other", {"a": 1}), ("clerk/k", {"a": 1})):
        with pytest.raises(IdempotencyConflict) as refused:
            await clerk.submitted(agent, payload, key="order-1")
        assert (refused.value.code, refused.value.task_id) == ("idempotency_conflict", first.id)
    assert await clerk.counts() == {"queued": 1}
    again = await clerk.submitted("clerk", {"a": 1}, key="order-1")
    assert (again.id, again.deduplicated) == (first.id, True)


async def test_the_order_of_keys_in_a_payload_does_not_matter(clerk: World) -> None:
    first = await clerk.submitted("clerk", {"a": 1, "b": 2}, key="k")
    assert (await clerk.submitted("clerk", {"b": 2, "a": 1}, key="k")).id == first.id


@pytest.mark.parametrize(
    ("payloads", "options", "code"),
    [
        ([1, float("nan"), 3], {}, "not_finite_number"),
        ([1, 2], {"keys": ["a", "bad key"]}, "bad_name"),
        ([1, 2], {"keys": ["a"]}, "bad_keys"),
        ([1], {"keys": ["a", "b"]}, "bad_keys"),
        ([1, 2], {"keys": ["a", "a"]}, "idempotency_conflict"),
        ([1, 2], {"priority": 99}, "bad_priority"),
    ],
)
async def test_one_bad_task_among_many_is_named_and_none_is_stored(
    clerk: World, payloads: list[Any], options: dict[str, Any], code: str
) -> None:
    with pytest.raises(Refused) as refused:
        await clerk.client.submit_many("clerk", payloads, **options)
    assert refused.value.code == code
    assert await nothing_is_stored(clerk)


async def test_a_bad_task_among_many_is_named_by_its_number(clerk: World) -> None:
    with pytest.raises(BadInput, match="number 1") as refused:
        await clerk.client.submit_many("clerk", [1, {"x": [float("nan")]}])
    assert refused.value.field == "[1].payload.x[0]"
