"""After a reclaim another worker continues from the log: nothing recorded is computed again."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from endwell import AsyncHandle, Context, TaskFailed
from endwell.model import commands as c
from endwell.model.task import ErrorInfo
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World
from tests.turn.outside_calls import Counting, recorded

TIMED_OUT = ErrorInfo(code="step_timeout", message="'ask' took longer than 1 s")


async def left_behind(world: World, result_type: str) -> tuple[AsyncHandle, str]:
    """A task whose worker has recorded one step, timed out in the next, and died; and that attempt."""
    await world.registered("clerk")
    handle = await world.submitted("clerk")
    dying = await world.silent_session("clerk")
    (held,) = await world.claimed(dying, "clerk")
    about: dict[str, Any] = {
        "namespace": world.namespace,
        "task_id": handle.id,
        "attempt_id": held.task.attempt_id,
    }
    is_final = result_type == "permanent_failure"
    failure = b'{"code":"step_timeout","message":"no answer","retryable":false}' if is_final else None
    for step, kind, content, error in (
        ("1:()plan#1", "success", b'"the plan"', None),
        ("1:()ask#1", result_type, failure, TIMED_OUT),
    ):
        digest = hashlib.sha256(content).hexdigest() if content else ""
        record = c.RecordStep(
            command_id=step,
            step=step,
            result_type=kind,
            content=content,
            content_hash=digest,
            error=error,
            **about,
        )
        await world.store.commit_one(record)
    world.clock.advance(31)  # past its lease
    assert await (await world.supervisor()).reclaimer.run_once() == 1
    return handle, str(held.task.attempt_id)


def clerk(world: World) -> tuple[Counting, Counting]:
    """An agent of two steps, and what each of them was called with."""
    plan, ask = Counting(), Counting()

    @world.app.agent("clerk")
    async def run(ctx: Context) -> list[Any]:
        return [await ctx.step("plan", plan, "again"), await ctx.step("ask", ask, "answer"), ctx.attempt_id]

    return plan, ask


@pytest.mark.covers("S3.24", "S3.29")
async def test_a_new_worker_replays_the_records_and_tries_the_timed_out_step_again(world: World) -> None:
    plan, ask = clerk(world)
    handle, first_attempt = await left_behind(world, "retryable_failure")
    await world.working()

    planned, answered, attempt = await handle.result(PATIENCE_SECONDS)

    assert (planned, answered) == ("the plan", "answer")
    assert attempt != first_attempt
    assert (plan.calls, ask.calls) == ([], ["answer"]), "what is recorded is not computed again"
    assert [fact.result_type for fact in await recorded(world, handle)] == [
        "success",
        "retryable_failure",
        "success",
    ]


@pytest.mark.covers("S3.24", "S3.29")
async def test_a_new_worker_ends_the_task_where_the_timeout_was_permanent(world: World) -> None:
    plan, ask = clerk(world)
    handle, _ = await left_behind(world, "permanent_failure")
    await world.working()

    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)

    assert (plan.calls, ask.calls) == ([], [])
    task = await handle.task()
    assert (task.status, task.reason, task.retry_count) == ("failed", "step_timeout", 1)


@pytest.mark.covers("S2.8")
async def test_a_recorded_result_of_none_is_not_computed_again(quick_world: World) -> None:
    """Of a step, an effect and another agent: None is what came of it, and no sign that it failed."""
    look, pay, ask = Counting(), Counting(), Counting()

    @quick_world.app.agent("silent")
    async def silent() -> None:
        ask("once")

    @quick_world.app.agent("clerk", delays=[0.05])
    async def run(ctx: Context) -> list[Any]:
        came = [await ctx.step("look", look), await ctx.effect("pay", pay), await ctx.call("silent")]
        if ctx.retry_count == 0:
            raise RuntimeError("after all three")
        return came

    await quick_world.working()
    handle = await quick_world.submitted("clerk")

    assert await handle.result(PATIENCE_SECONDS) == [None, None, None]
    assert (look.calls, pay.calls, ask.calls) == ([None], [None], ["once"])
