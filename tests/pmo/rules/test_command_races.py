"""A command and a rule, or two commands, in the same instant: in either order the task stays whole."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.model import commands as c
from endwell.model.moments import SECOND
from tests.pmo.rules.cases import answer, fired, running, suspended
from tests.store.world import World


@pytest.mark.parametrize("first", ["cap", "answer"])
async def test_the_suspend_cap_races_a_late_answer(world: World, first: str) -> None:
    task = await suspended(world)
    await world.database.sql("DELETE FROM cards WHERE kind = 'tool.call'")
    world.advance(60)
    await fired(world, task)
    world.advance(30)
    commands = [world.to(c.ClockFired, task), answer(world, task)]
    await world.store.commit(commands if first == "cap" else commands[::-1])

    found = await world.task(task)
    assert (found.status, found.retry_count) == ("queued", 1 if first == "cap" else 0)
    assert found.redelivery == (None if first == "cap" else "resume")
    assert await world.problems() == []


@pytest.mark.parametrize("first", ["guard", "worker"])
@pytest.mark.covers("S2.22")
async def test_the_crash_limit_races_a_claim(world: World, first: str) -> None:
    task = await running(world)
    for _ in range(2):
        lost = world.to(c.Reclaim, task, reason="visibility_timeout")
        await world.do(lost)
        task = await world.claim(await world.task(task))
    await world.do(world.to(c.Reclaim, task, reason="visibility_timeout"))
    guarded = await world.task(task)
    assert (guarded.status, guarded.clock_rule) == ("queued", "crash_limit")
    commands = [world.to(c.ClockFired, task), world.to(c.Claim, task, session_id="s1", attempt_id="late")]
    replies = await world.store.commit(commands if first == "guard" else commands[::-1])

    assert sum(reply.refusal is not None for reply in replies) == 1, "a task that must end is not claimed"
    assert (await world.task(task)).reason == "crash_limit"


@pytest.mark.parametrize("first", ["reclaim", "worker"])
@pytest.mark.covers("S0.4", "S0.68")
async def test_a_reclaim_races_a_finish(world: World, first: str) -> None:
    task = await running(world)
    world.advance(31)  # past its session's lease
    commands = [world.to(c.Reclaim, task, actor="watch"), world.finish(task)]
    replies = await world.store.commit(commands if first == "reclaim" else commands[::-1])

    found = await world.task(task)
    assert sum(reply.refusal is not None for reply in replies) == 1
    assert found.status == ("queued" if first == "reclaim" else "succeeded")
    assert found.epoch == task.epoch + (first == "reclaim")
    assert await world.problems() == []


@pytest.mark.parametrize("first", ["requeue", "delivery"])
@pytest.mark.covers("S0.32")
async def test_a_resume_whose_worker_died_is_applied_once(world: World, first: str) -> None:
    """A worker claimed the resume from the ledger and died; two others find its lapsed lease."""
    task = await suspended(world)
    world.advance(60)
    await world.store._commit((world.to(c.InjectTimeout, task),))  # who reported it died right after
    (message,) = await world.store.pending_messages("default", task.id)
    about: dict[str, Any] = {"namespace": "default", "message_ids": (message.id,), "lease": SECOND}
    await world.store.commit_one(c.TakeResumes(command_id=world.new_id(), actor="dead", **about))
    world.advance(2)
    requeue = c.RequeueResumes(command_id=world.new_id(), namespace="default", actor="w2")
    deliver = world.to(c.Deliver, task, message_id=message.id)
    for command in (requeue, deliver) if first == "requeue" else (deliver, requeue):
        await world.store.commit_one(command)

    assert (await world.history(task)).count("task.resumed") == 1
    assert await world.problems() == []
