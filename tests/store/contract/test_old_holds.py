"""Blocked tasks of earlier versions, whose `ends_by` stands still although no person accepted them."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.machine.decision import Decision
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.moments import SECOND
from tests.machine.planting import change_rule
from tests.store.world import World

DAY = 86_400


def block_as_before(task: Any, command: c.Block, now: int, limits: Any, seen: Any) -> Decision:
    """What earlier versions wrote: nothing in the fact says whether a person accepted the hold."""
    return Decision(
        facts=(f.TaskBlocked(reason=command.reason, owner="ada", remind_at=now + limits.remind_every),)
    )


async def test_an_unaccepted_hold_of_an_earlier_version_ends_after_its_next_reminder(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await world.queued_task()
    with monkeypatch.context() as earlier:
        change_rule(earlier, c.Block, then=block_as_before)
        old = await world.do(world.to(c.Block, task, reason="dispatch_timeout"))
    assert (old.clock_rule, await world.problems()) == ("remind", [])
    world.advance(30 * DAY)

    reminded = await world.do(world.to(c.ClockFired, task))

    assert (reminded.status, reminded.clock_rule, reminded.held_since) == ("blocked", "ends_by", None)
    assert reminded.ends_by >= old.ends_by + 30 * DAY * SECOND, "the time it was held is given back"
    assert await world.problems() == [], "the fold of old and new events is the row"
    world.advance(DAY)
    assert (await world.do(world.to(c.ClockFired, task))).status == "timeout"


async def test_an_old_hold_that_a_person_accepts_after_the_upgrade_keeps_standing_still(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await world.queued_task()
    with monkeypatch.context() as earlier:
        change_rule(earlier, c.Block, then=block_as_before)
        old = await world.do(world.to(c.Block, task, reason="dispatch_timeout"))
    await world.do(world.to(c.Assign, task, owner="ada"))
    world.advance(30 * DAY)

    reminded = await world.do(world.to(c.ClockFired, task))

    assert (reminded.clock_rule, reminded.held_since) == ("remind", old.held_since)
    assert await world.problems() == []
