"""A probe answers each of its questions as if asked alone, at one moment."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.model.commands import AgentSpec
from endwell.model.moments import SECOND
from endwell.store.probe import NOW, Probe, ProbeResult
from tests.store.world import World

WORK = ("offered_to_some", "ready_for_some", "next_start_of_some")


def looked_for(agents: list[str]) -> tuple[Probe, ...]:
    return (
        Probe("offered_to_some", ("default", agents)),
        Probe("ready_for_some", ("default", agents, NOW)),
        Probe("next_start_of_some", ("default", agents, NOW), is_value=True),
    )


async def look(world: World, *agents: str) -> ProbeResult:
    return await world.store.probe(*looked_for(list(agents)))


def found(seen: ProbeResult) -> list[Any]:
    return [seen[name] or None for name in WORK]


async def test_a_probe_of_an_empty_store_finds_nothing(world: World) -> None:
    assert found(await look(world, "coder", "tester")) == [None, None, None]
    assert found(await look(world)) == [None, None, None]


async def test_ready_and_delayed_tasks_are_told_apart_at_every_priority(world: World) -> None:
    await world.queued_task(agent="tester", delay=90 * SECOND, priority=7)
    soon = await world.queued_task(agent="coder", delay=60 * SECOND)
    assert found(await look(world, "coder", "tester")) == [None, None, soon.run_at]
    assert found(await look(world, "writer")) == [None, None, None]

    await world.queued_task(agent="tester", priority=-3)
    seen = await look(world, "coder", "tester")
    assert seen["ready_for_some"]
    assert seen["next_start_of_some"] == soon.run_at
    assert not (await look(world, "coder")).has_any("offered_to_some", "ready_for_some")

    world.advance(61)
    assert (await look(world, "coder"))["ready_for_some"]


async def test_a_probe_uses_the_stores_clock(world: World) -> None:
    before = await world.store.now()
    seen = await look(world, "coder")
    assert before <= seen.now <= await world.store.now()
    world.advance(100)
    assert (await look(world, "coder")).now >= before + 100 * SECOND


async def test_only_tasks_that_were_ready_for_a_while_are_long_ready(world: World) -> None:
    await world.register(AgentSpec(name="coder"))
    await world.queued_task(agent="coder")
    asked = Probe("long_ready", ("default", NOW, 30 * SECOND))
    assert not (await world.store.probe(asked))["long_ready"]
    world.advance(31)
    assert (await world.store.probe(asked))["long_ready"]


async def test_the_next_start_of_any_registered_agent_is_found(world: World) -> None:
    asked = Probe("next_start", ("default", NOW), is_value=True)
    await world.register(AgentSpec(name="coder"), AgentSpec(name="tester"))
    await world.queued_task(agent="coder")
    await world.queued_task(agent="writer", delay=30 * SECOND)
    assert (await world.store.probe(asked))["next_start"] is None
    later = await world.queued_task(agent="tester", delay=90 * SECOND)
    soon = await world.queued_task(agent="coder", delay=60 * SECOND, priority=-3)
    assert (await world.store.probe(asked))["next_start"] == soon.run_at
    world.advance(61)
    assert (await world.store.probe(asked))["next_start"] == later.run_at


async def test_questions_with_the_same_parameters_in_another_order_are_not_mixed_up(world: World) -> None:
    await world.queued_task(agent="coder")
    for agents in (["coder"], ["tester"]):
        one, two, three = looked_for(agents)
        seen = await world.store.probe(three, one, two)
        assert bool(seen["ready_for_some"]) == (agents == ["coder"])
        seen = await world.store.probe(two)
        assert bool(seen["ready_for_some"]) == (agents == ["coder"])


@pytest.mark.parametrize("name", ["due", "expired_claims", "lapsed_sessions"])
async def test_a_query_of_many_columns_is_probed_for_rows(world: World, name: str) -> None:
    extra = {"due": (-1, "", 1)}.get(name, (1,))
    asked = Probe(name, ("default", NOW, *extra))
    task = await world.running_task()
    assert not (await world.store.probe(asked))[name]
    world.advance(40 if name != "due" else (task.ends_by - task.created_at) / SECOND + 1)
    assert bool((await world.store.probe(asked))[name]) == (name != "lapsed_sessions")
