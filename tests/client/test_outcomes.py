"""What an agent may return or raise, and what the waiting client gets of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

import endwell
from endwell import (
    Context,
    Fail,
    NotFound,
    Retry,
    TaskCancelled,
    TaskEnded,
    TaskFailed,
    TaskNotSucceeded,
    TaskTimedOut,
    WaitTimedOut,
)
from endwell.model.task import Task
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually, terminal


async def test_an_agent_may_take_no_payload(world: World) -> None:
    @world.app.agent("tick")
    async def tick() -> str:
        return "tock"

    @world.app.agent("who")
    async def who(ctx: Context) -> str:
        return ctx.agent

    await world.working()
    assert await (await world.submitted("tick")).result(PATIENCE_SECONDS) == "tock"
    assert await (await world.submitted("who")).result(PATIENCE_SECONDS) == "who"
    with pytest.raises(endwell.BadInput) as refused:
        await world.submitted("tick", {"unexpected": 1})
    assert refused.value.code == "bad_payload"


async def test_the_context_says_whose_turn_it_is(world: World) -> None:
    @world.app.agent("me")
    async def me(ctx: Context, payload: str) -> dict[str, Any]:
        return {"task": ctx.task_id, "key": ctx.agent_key, "idempotency": ctx.idempotency_key}

    @world.app.agent("us")
    def us(ctx: Context, payload: str) -> dict[str, Any]:
        ctx.progress("halfway")  # type: ignore[unused-coroutine]  # blocks in a thread
        return {"task": ctx.task_id, "retry": ctx.retry_count}

    await world.working()
    handle = await world.submitted("me/issue-42", "x", key="order-1")
    assert await handle.result(PATIENCE_SECONDS) == {
        "task": handle.id,
        "key": "issue-42",
        "idempotency": "order-1",
    }
    handle = await world.submitted("us", "x")
    assert await handle.result(PATIENCE_SECONDS) == {"task": handle.id, "retry": 0}
    assert "task.heartbeat" in await world.history(handle)


@pytest.mark.covers("S4.32", "S4.13")
async def test_the_same_key_is_the_same_task_also_after_it_ended(world: World) -> None:
    runs = []

    @world.app.agent("once")
    async def once(number: int) -> int:
        runs.append(number)
        return number

    await world.working()
    first = await world.submitted("once", 1, key="k")
    assert await first.result(PATIENCE_SECONDS) == 1
    again = await world.submitted("once", 1, key="k")

    assert again.id == first.id
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert runs == [1]
    unnamed = await world.submitted("once", 2)
    assert (await first.task()).idempotency_key == "k"
    assert (await unnamed.task()).idempotency_key == unnamed.id, "no task is without one"


@pytest.mark.covers("S4.10", "S4.51", "S4.45", "S4.53")
async def test_fail_ends_the_task_without_a_retry(world: World) -> None:
    @world.app.agent("stubborn")
    async def stubborn() -> None:
        raise Fail("the customer is gone")

    await world.working()
    handle = await world.submitted("stubborn")
    with pytest.raises(TaskFailed, match="the customer is gone") as failed:
        await handle.result(PATIENCE_SECONDS)

    assert failed.value.task.status == "failed"
    assert failed.value.task.reason == "agent_gave_up"
    assert failed.value.deliverable["kind"] == "failure_report"
    assert failed.value.deliverable["error"]["message"] == "the customer is gone"
    assert failed.value.task_id == handle.id
    history = await world.history(handle)
    assert history[-2:] == ["task.failed", "task.dlq"]
    assert terminal(history) == ["task.failed"]


async def test_retry_schedules_the_next_try_at_its_own_time(world: World) -> None:
    tries = []

    @world.app.agent("polite")
    async def polite(ctx: Context) -> int:
        tries.append(ctx.retry_count)
        if len(tries) < 2:
            raise Retry("not yet", after=timedelta(minutes=5))
        return len(tries)

    await world.working()
    handle = await world.submitted("polite")
    task = await _retry_of(world, handle, 1)
    assert 299 < (task.run_at - task.updated_at) / 1e6 <= 300
    assert tries == [0]
    world.clock.advance(301)
    assert await handle.result(PATIENCE_SECONDS) == 2
    assert tries == [0, 1]


async def _retry_of(world: World, handle: endwell.AsyncHandle, count: int) -> Any:
    async def is_there() -> bool:
        return (await handle.task()).retry_count >= count

    await eventually(is_there, f"retry {count} is scheduled")
    return await handle.task()


@pytest.mark.parametrize("after", [float("nan"), float("inf"), -5, "soon"])
async def test_a_retry_with_an_impossible_time_is_still_a_retry(sqlite_world: World, after: Any) -> None:
    world = sqlite_world

    @world.app.agent("odd")
    async def odd() -> None:
        raise Retry(after=after)

    await world.working()
    task = await _retry_of(world, await world.submitted("odd"), 1)
    assert 0 <= task.run_at - task.created_at <= 2 * 86_400_000_000


async def test_errors_in_give_up_on_are_not_retried(world: World) -> None:
    @world.app.agent("picky", give_up_on=(KeyError, ValueError))
    async def picky(kind: str) -> None:
        raise {"key": KeyError, "value": ValueError, "type": TypeError}[kind]("no")

    await world.working()
    for kind in ("key", "value"):
        with pytest.raises(TaskFailed) as failed:
            await (await world.submitted("picky", kind)).result(PATIENCE_SECONDS)
        assert failed.value.task.retry_count == 1
        assert failed.value.task.reason == "exception"
    assert (await _retry_of(world, await world.submitted("picky", "type"), 1)).status == "queued"


async def test_a_task_that_misses_its_deadline_raises_timed_out(world: World) -> None:
    @world.app.agent("never")
    async def never() -> None: ...

    handle = await world.submitted("never", deadline=60)
    world.clock.advance(61)
    await (await world.supervisor()).run_once()
    with pytest.raises(TaskTimedOut) as timed_out:
        await handle.result(PATIENCE_SECONDS)
    assert timed_out.value.task.reason == "ends_by"
    assert timed_out.value.deliverable["status"] == "timeout"


async def test_a_cancelled_task_raises_cancelled_and_cannot_be_cancelled_again(world: World) -> None:
    @world.app.agent("never")
    async def never() -> None: ...

    handle = await world.submitted("never")
    task = await handle.cancel("changed my mind")
    assert (task.status, task.reason, task.dead_letter) == ("cancelled", "changed my mind", None)
    with pytest.raises(TaskCancelled):
        await handle.result(PATIENCE_SECONDS)
    with pytest.raises(TaskEnded):
        await handle.cancel()
    assert terminal(await world.history(handle)) == ["task.cancelled"]


async def test_a_timed_out_wait_does_not_end_the_task(world: World) -> None:
    gate = asyncio.Event()

    @world.app.agent("slow")
    async def slow() -> str:
        await gate.wait()
        return "done"

    await world.working()
    handle = await world.submitted("slow")
    with pytest.raises(WaitTimedOut) as out:
        await handle.result(0.05)
    assert not isinstance(out.value, TaskNotSucceeded)
    assert out.value.task_id == handle.id
    gate.set()
    assert await handle.result(PATIENCE_SECONDS) == "done"


async def test_the_store_is_not_asked_for_a_waiter_that_left(world: World) -> None:
    @world.app.agent("never")
    async def never() -> None: ...

    handle, other = await world.submitted("never"), await world.submitted("never")
    with pytest.raises(WaitTimedOut):
        await handle.result(0.05)
    asked: list[Sequence[str]] = []
    usual = world.store.results_by_ids

    async def counted(namespace: str, ids: Sequence[str]) -> list[tuple[Task, bytes | None]]:
        asked.append(ids)
        return await usual(namespace, ids)

    world.store.results_by_ids = counted  # type: ignore[method-assign]  # the test listens in
    waiting = asyncio.ensure_future(other.result(PATIENCE_SECONDS))
    await eventually(lambda: len(asked) > 4, "the other waiter has been asked for several times")
    waiting.cancel()
    assert {each for ids in asked for each in ids} == {other.id}


async def test_a_task_that_does_not_exist_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await world.client.task("no-such-task")
