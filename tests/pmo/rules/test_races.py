"""A rule and its rival in the same instant: one of them wins, in either order."""

from __future__ import annotations

import pytest

from endwell.machine.clocks import RULE_NAMES, due
from endwell.model import commands as c
from endwell.model.task import Task
from endwell.store.log import Problem, check_chain
from endwell.store.working_set import replay
from tests.pmo.rules.cases import CASES, Case
from tests.store.world import World

# one world for all of them: each test looks at a task of its own
pytestmark = pytest.mark.asyncio(loop_scope="module")
ENDINGS = ("task.succeeded", "task.failed", "task.timeout", "task.cancelled")
FACT_OF = {
    "ends_by": "task.timeout",
    "reap": "task.reaped",
    "dispatch_timeout": "task.reaped",
    "approval_expire": "approval.expired",
    "inject_timeout": "wait.timed_out",
    "recover": "task.unblocked",
    "remind": "task.reminded",
    "approval_remind": "approval.reminded",
    "ring_again": "task.rang_again",
}
by_label = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)


async def at_the_moment(world: World, case: Case) -> Task:
    """A task whose rule has just become due."""
    task = await case.stage(world)
    world.advance(case.after)
    return task


async def ended_up(world: World, task: Task) -> tuple[str, str | None]:
    found = await world.task(task)
    return found.status, found.reason


async def problems_of(world: World, task: Task) -> list[Problem]:
    """The problems of its log and its row."""
    row, events = await world.task(task), await world.store.events_of_task("default", task.id)
    assert replay(events) == row
    return list(check_chain(task.id, events, (row.version, row.head_hash)))


async def test_every_rule_has_its_race() -> None:
    """The guard and the suspend cap have tests of their own below."""
    assert {case.rule for case in CASES} | {"guard", "suspend_cap"} == set(RULE_NAMES)


@by_label
@pytest.mark.covers("S0.36", "S0.40", "S0.51")
async def test_a_rule_does_nothing_before_its_time(lasting_world: World, case: Case) -> None:
    world = lasting_world
    task = await case.stage(world)
    world.advance(case.after - 5)  # PostgreSQL's clock advances a little by itself
    before = await world.history(task)

    await world.reply(world.to(c.ClockFired, task))

    assert FACT_OF[case.rule] not in (await world.history(task))[len(before) :]


@by_label
async def test_a_rule_acts_at_its_time_and_only_once(lasting_world: World, case: Case) -> None:
    world = lasting_world
    task = await at_the_moment(world, case)
    rule = due(await world.task(task), await world.store.now())
    assert rule is not None
    assert rule.name == case.rule

    for _ in range(2):
        await world.reply(world.to(c.ClockFired, task))

    assert (await world.history(task)).count(FACT_OF[case.rule]) == 1
    assert await problems_of(world, task) == []


@by_label
@pytest.mark.parametrize("together", [True, False], ids=["one commit", "two commits"])
@pytest.mark.covers("S0.4", "S0.68")
async def test_a_rule_that_comes_first_wins(lasting_world: World, case: Case, together: bool) -> None:
    world = lasting_world
    task = await at_the_moment(world, case)
    fired, rival = world.to(c.ClockFired, task), case.rival(world, task)
    commits = [(fired, rival)] if together else [(fired,), (rival,)]
    replies = [reply for commands in commits for reply in await world.store.commit(commands)]

    assert replies[0].refusal is None
    refusal = replies[1].refusal
    assert (refusal.code if refusal else None) == case.loses
    assert await ended_up(world, task) == case.acts
    await and_all_is_well(world, task)


@by_label
@pytest.mark.parametrize("together", [True, False], ids=["one commit", "two commits"])
@pytest.mark.covers("S0.4", "S0.41", "T1b")
async def test_a_rival_that_comes_first_wins(lasting_world: World, case: Case, together: bool) -> None:
    world = lasting_world
    task = await at_the_moment(world, case)
    rival, fired = case.rival(world, task), world.to(c.ClockFired, task)
    commits = [(rival, fired)] if together else [(rival,), (fired,)]
    for commands in commits:
        await world.store.commit(commands)

    assert await ended_up(world, task) == case.spared
    await and_all_is_well(world, task)


async def and_all_is_well(world: World, task: Task) -> None:
    history = await world.history(task)
    assert sum(history.count(kind) for kind in ENDINGS) == (await world.task(task)).is_ended
    assert history.count("task.resumed") <= 1
    assert await problems_of(world, task) == []
