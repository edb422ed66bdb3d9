"""Only the holder of a task changes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from endwell.errors import StaleAttempt
from endwell.model import commands as c
from endwell.model.task import Task
from tests.store.world import BROKEN, World

WRITES: list[tuple[type[c.TaskCommand], dict[str, Any]]] = [
    (c.Finish, {"result": b"1", "result_hash": "x"}),
    (c.FailTurn, {"error": BROKEN}),
    (c.Progress, {}),
    (c.HandBack, {}),
    (c.Suspend, {"calls": (c.Call(tool_call_id="call", kind="tool", within=1),)}),
    (c.RecordStep, {"step": "1:()plan#1", "content": b"1", "content_hash": "x"}),
    (c.IntendEffect, {"step": "1:()pay#1", "key": "pay:1", "args_hash": "x", "timeout": 1}),
    (c.FinishEffect, {"step": "1:()pay#1", "key": "pay:1", "content": b"1", "content_hash": "x"}),
    (c.DoubtEffect, {"key": "pay:1", "reason": "timeout"}),
    (c.KeepDraft, {"content": b"1", "content_hash": "x"}),
]


async def reclaimed(world: World) -> tuple[Task, Task]:
    """A task as its first holder knows it, and as its second one does."""
    first = await world.running_task()
    world.advance(31)
    await world.do(world.to(c.Reclaim, first))
    await world.open_session("s2")
    return first, await world.claim(first, "s2")


@pytest.mark.covers("S3.1", "S3.8", "S3.9", "S3.12", "S3.17")
@pytest.mark.parametrize(("kind", "options"), WRITES, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_late_write_is_refused_logged_and_changes_nothing(
    world: World, kind: type[c.TaskCommand], options: dict[str, Any]
) -> None:
    late, current = await reclaimed(world)

    with pytest.raises(StaleAttempt):
        await world.do(world.to(kind, late, **options))

    after = await world.task(current)
    log_end = {"version": after.version, "head_hash": after.head_hash, "updated_at": after.updated_at}
    assert replace(current, **log_end) == after
    assert (await world.history(current))[-1] == "write.refused"
    assert (await world.do(world.finish(current))).status == "succeeded"


@pytest.mark.covers("S3.9", "S4.12")
async def test_a_second_finish_is_refused(world: World) -> None:
    task = await world.running_task()
    done = await world.do(world.finish(task, b'"first"'))
    with pytest.raises(StaleAttempt):
        await world.do(world.finish(task, b'"second"'))
    assert (await world.store.card("default", done.deliverable_card or "")).content == b'"first"'
    assert (await world.history(task)).count("task.succeeded") == 1


async def test_a_cancelled_task_is_not_finished_by_its_worker(world: World) -> None:
    task = await world.running_task()
    await world.do(world.to(c.Cancel, task))
    with pytest.raises(StaleAttempt):
        await world.do(world.finish(task))
    assert (await world.task(task)).status == "cancelled"


async def test_of_two_finishes_in_one_batch_the_first_counts(world: World) -> None:
    task = await world.running_task()
    first, second = await world.store.commit([world.finish(task, b"1"), world.finish(task, b"2")])
    assert first.unwrap().status == "succeeded"
    assert isinstance(second.refusal, StaleAttempt)


async def test_of_two_stores_that_end_a_task_at_once_one_does(world: World) -> None:
    other = await world.another_store()
    tasks = [await world.running_task() for _ in range(10)]
    for task in tasks:
        finished, cancelled = await asyncio.gather(
            world.store.commit([world.finish(task)]), other.commit([world.to(c.Cancel, task)])
        )
        assert (finished[0].refusal is None) != (cancelled[0].refusal is None)
        assert len(await world.store.turns_of_task("default", task.id)) == 1
    assert await world.problems() == []


@pytest.mark.covers("S3.3", "S3.1")
async def test_a_named_task_is_claimed_by_one_of_two(world: World) -> None:
    await world.open_session("s1")
    await world.open_session("s2")
    task = await world.queued_task()
    first = await world.claim(task, "s1")
    claim = world.to(c.Claim, task, session_id="s2", attempt_id=world.new_id())
    refusal = (await world.reply(claim)).refusal
    assert refusal is not None
    assert (await world.task(task)).attempt_id == first.attempt_id


async def test_a_session_without_a_lease_claims_nothing(world: World) -> None:
    await world.open_session()
    task = await world.queued_task()
    world.advance(31)
    refusal = (await world.reply(world.claim_next())).refusal
    assert refusal is not None
    assert refusal.code == "session_lost"
    assert (await world.task(task)).status == "queued"


async def test_a_change_by_another_process_to_a_cached_task_is_seen_at_once(world: World) -> None:
    other = await world.another_store()
    task = await world.running_task()
    await world.do(world.to(c.Progress, task))
    await other.commit_one(world.to(c.Cancel, task))
    again = world.to(
        c.Replay, task, new_task_id=world.new_id(), payload=b"{}", payload_hash=task.payload_hash
    )
    assert (await world.do(again)).replay_of == task.id


async def test_a_holder_learns_at_its_next_write_that_another_process_took_its_task(world: World) -> None:
    other = await world.another_store()
    task, kept = await world.running_task(), await world.running_task()
    await other.commit_one(world.to(c.Cancel, task))
    lost, progress = await world.store.commit([world.finish(task), world.to(c.Progress, kept)])
    assert isinstance(lost.refusal, StaleAttempt)
    assert progress.unwrap().attempt_id == kept.attempt_id
    assert (await world.task(task)).status == "cancelled"
    assert await world.problems() == []


async def test_of_many_that_are_handed_in_at_once_only_the_one_that_was_taken_is_refused(
    world: World,
) -> None:
    session_id = await world.open_session()
    await world.store.commit([world.submit() for _ in range(35)])
    taken = await world.claimed(session_id, 35)
    other = await world.another_store()
    await other.commit_one(world.to(c.Cancel, taken[17]))
    replies = await world.store.commit([world.finish(task) for task in taken])

    refused = [task.id for task, reply in zip(taken, replies, strict=True) if reply.refusal is not None]
    assert refused == [taken[17].id]
    assert await world.store.counts_by_status("default") == {"succeeded": 34, "cancelled": 1}
    assert await world.problems() == []
