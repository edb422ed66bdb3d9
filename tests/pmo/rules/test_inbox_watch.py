"""The PMO's look at the inbox: it rings, and changes no row."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.model import commands as c
from endwell.pmo.inbox import InboxWatch
from endwell.settings import Settings, override
from endwell.store.actor import Actor
from endwell.store.reads.inbox import PendingRow
from tests.pmo.rules.cases import answer, dispatched, running
from tests.store.world import World


def watch(world: World, **changes: object) -> InboxWatch:
    runtime = world.database.runtime
    settings = override(Settings(), changes, source="test")
    return InboxWatch(Actor(world.store, runtime.ids, namespace="default", name="pmo-1"), settings.pmo)


@pytest.mark.covers("S0.58", "S0.59", "S0.60")
async def test_a_long_pending_message_is_rung_for_and_not_changed(world: World) -> None:
    task = await dispatched(world)
    look = watch(world)
    world.advance(4)
    world.bells.clear()
    assert (await look.run_once(), world.bells) == (0, set()), "younger than pmo.pending_wakeup_seconds"

    world.advance(1)
    before = await world.store.inbox_page("default")
    version = (await world.task(task)).version
    assert await look.run_once() == 1
    assert world.bells == {"work:default:coder"}
    assert await world.store.inbox_page("default") == before
    assert (await world.task(task)).version == version
    assert await look.run_once() == 1, "it rings at every tick until a worker comes"


@pytest.mark.covers("S0.75")
async def test_the_age_from_which_a_message_is_rung_for_is_configurable(world: World) -> None:
    await dispatched(world)
    look = watch(world, **{"pmo.pending_wakeup_seconds": 17})
    world.advance(15)
    assert await look.run_once() == 0
    world.advance(2)
    assert await look.run_once() == 1


@pytest.mark.covers("S0.61", "S0.64", "S0.76")
async def test_the_age_at_which_a_message_without_a_channel_is_skipped_is_configurable(world: World) -> None:
    await dispatched(world)
    await world.database.sql("UPDATE agent_inbox SET channel = NULL")
    look = watch(world, **{"pmo.pending_wakeup_skip_seconds": 40})
    for seconds, said in ((38, ("pending", None)), (2, ("skipped", "missing_channel"))):
        world.advance(seconds)
        assert await look.run_once() == 0
        (row,) = await world.store.inbox_page("default")
        assert (row.status, row.watchdog_error) == said


@pytest.mark.covers("S0.59")
async def test_each_message_is_rung_for_by_its_own_channel(world: World) -> None:
    for channel in ("main", "ops"):
        await dispatched(world, channel=channel)
    world.advance(5)
    world.bells.clear()

    assert await watch(world).run_once() == 2
    assert world.bells == {"work:default:coder", "work:default:coder/ops"}


@pytest.mark.covers("S0.58", "S0.59")
async def test_an_early_answer_is_rung_for(world: World) -> None:
    task = await running(world)
    await world.do(answer(world, task))
    world.advance(5)
    world.bells.clear()

    assert await watch(world).run_once() == 1
    assert world.bells == {"work:default:coder"}


@pytest.mark.covers("S0.43")
@pytest.mark.parametrize(("stage", "after"), [(dispatched, 30), (running, 300)], ids=["unclaimed", "reaped"])
async def test_a_turn_that_was_ended_by_force_has_no_active_channel(
    world: World, stage: Any, after: float
) -> None:
    """A message without a channel is rung for on that of its task's turn, only while there is one."""
    task = await stage(world, channel="ops")
    await world.do(answer(world, task))
    await world.database.sql("UPDATE agent_inbox SET channel = NULL WHERE message_type = 'tool_result'")
    world.advance(after)

    async def pending() -> PendingRow:
        rows = await world.store.long_pending("default", await world.store.now(), (-1, ""), 10)
        (found,) = [row for row in rows if row.message_type == "tool_result"]
        return found

    row = await pending()
    assert (row.channel, row.active_channel, row.target_channel) == (None, "ops", "ops")
    world.bells.clear()
    assert await watch(world).run_once() == 1
    assert world.bells == {"work:default:coder/ops"}

    ended = await world.do(world.to(c.ClockFired, task, actor="pmo-1"))
    assert (ended.turn_id, ended.channel) == (None, "ops"), "the task keeps its own, for its next turn"
    row = await pending()
    assert (row.active_channel, row.target_channel) == (None, None)
    assert await watch(world).run_once() == 0, "no agent is rung for it"


@pytest.mark.parametrize("first", ["ring", "claim"])
async def test_a_ring_races_a_claim(world: World, first: str) -> None:
    task = await dispatched(world)
    world.advance(5)
    look = watch(world)
    if first == "ring":
        assert await look.run_once() == 1
        await world.claim(task)
    else:
        await world.claim(task)
        assert await look.run_once() == 0, "it is being processed"
    (row,) = await world.store.inbox_page("default")
    assert (row.status, (await world.task(task)).status) == ("processing", "running")


@pytest.mark.parametrize("first", ["skip", "claim"])
async def test_a_skip_races_a_claim(world: World, first: str) -> None:
    """The message is skipped; the turn itself is found without it."""
    task = await dispatched(world)
    (row,) = await world.store.inbox_page("default")
    skip = world.to(c.SkipMessage, task, message_id=row.id, why="missing_channel")
    claim = world.to(c.Claim, task, session_id="s1", attempt_id=world.new_id())
    for command in (skip, claim) if first == "skip" else (claim, skip):
        assert (await world.reply(command)).refusal is None

    assert (await world.task(task)).status == "running"
    assert (await world.history(task)).count("inbox.skipped") == (first == "skip")
    (row,) = await world.store.inbox_page("default")
    assert row.status == ("skipped" if first == "skip" else "processing")
    assert await world.problems() == []


async def test_an_offer_of_an_ended_turn_is_skipped(world: World) -> None:
    """An older release, or a foreign program, may have left it."""
    task = await dispatched(world)
    await world.do(world.to(c.Cancel, task))
    await world.database.sql("UPDATE agent_inbox SET status = 'pending', archived_at = NULL")
    world.advance(5)

    await watch(world).run_once()

    (row,) = await world.store.inbox_page("default")
    assert (row.status, row.watchdog_error) == ("skipped", "turn_over")
    assert (await world.history(task))[-1] == "inbox.skipped"
    assert await world.problems() == []


async def test_an_offer_without_a_claim_has_its_reason(world: World) -> None:
    """No row is skipped without a reason; the task's own log says more."""
    task = await dispatched(world)
    await world.do(world.to(c.Cancel, task))
    (row,) = await world.store.inbox_page("default")
    assert (row.status, row.watchdog_error) == ("skipped", "turn_over")
    assert row.watchdog_at == row.archived_at is not None
    assert await world.store.skipped_count("default") == 0, "it is no news for a person"


async def test_an_offer_that_was_handed_back_has_no_reason(world: World) -> None:
    task = await dispatched(world)
    await world.claim(task)
    (row,) = await world.store.inbox_page("default")
    assert (row.status, row.watchdog_error, row.watchdog_at) == ("processing", None, None)


@pytest.mark.parametrize(("kind", "counted"), [("signal", 1), ("tool_result", 1), ("nudge", 0), ("turn", 0)])
async def test_skipped_messages_are_counted_and_skipped_offers_are_not(
    world: World, kind: str, counted: int
) -> None:
    await dispatched(world)
    await world.database.sql(f"UPDATE agent_inbox SET status = 'skipped', message_type = '{kind}'")
    assert await world.store.skipped_count("default") == counted
