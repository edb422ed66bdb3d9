"""Steps that take long: their timeouts, and how their worker and the PMO wait for them."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from endwell import AsyncHandle, Context, SyncContext, TaskFailed
from endwell.errors import StepFailed, StepTimeout
from endwell.model.moments import SECOND
from endwell.operate.questions import whole_task
from endwell.runtime import SystemClock
from tests.patience import PATIENCE_SECONDS
from tests.support.world import QUICK, World, eventually
from tests.turn.outside_calls import recorded

TIMEOUTS = {**QUICK, "worker.step_timeout_seconds": 0.1, "retry.base_seconds": 0.05}


@pytest.fixture
async def hasty(store_url: str) -> Any:
    """On each store, in real time; steps may take a tenth of a second."""
    async with World(store_url, settings=TIMEOUTS, clock=SystemClock()) as world:
        yield world


@pytest.mark.covers("S3.25", "S3.26", "S3.28", "S3.30", "S3.31", "S3.32", "S3.44")
@pytest.mark.parametrize("agent", ["waits", "hangs"])
async def test_a_step_that_takes_too_long_is_a_retryable_failure(hasty: World, agent: str) -> None:
    let_go = threading.Event()

    @hasty.app.agent("waits", retries=0)
    async def waits(ctx: Context) -> None:
        await ctx.step("slow", asyncio.sleep, 30)

    @hasty.app.agent("hangs", retries=0)
    def hangs(ctx: SyncContext) -> None:
        ctx.step("slow", let_go.wait, PATIENCE_SECONDS)

    worker = await hasty.working()
    handle = await hasty.submitted(agent)
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)

    assert failed.value.deliverable["error"]["code"] == StepTimeout.code
    (fact,) = await recorded(hasty, handle)
    assert (fact.result_type, fact.card, fact.error.code) == ("retryable_failure", None, "step_timeout")
    let_go.set()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert len(await recorded(hasty, handle)) == 1, "what came late is discarded"


@pytest.mark.covers("S3.27", "S3.28")
async def test_a_step_timeout_may_be_permanent(hasty: World) -> None:
    seen: list[str] = []

    @hasty.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> str:
        try:
            await ctx.step("slow", asyncio.sleep, 30, timeout=timedelta(seconds=0.05), on_timeout="permanent")
        except StepFailed as failed:
            seen.append(failed.code)
        if ctx.retry_count == 0:
            raise RuntimeError
        return "went on without it"

    await hasty.working()
    handle = await hasty.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == "went on without it"
    assert seen == ["step_timeout", "step_timeout"]
    (fact,) = await recorded(hasty, handle)
    assert (fact.result_type, fact.error.retryable) == ("permanent_failure", False)


@pytest.mark.covers("S3.27", "S3.29")
async def test_an_uncaught_permanent_timeout_ends_the_task(hasty: World) -> None:
    @hasty.app.agent("clerk", retries=3)
    async def run(ctx: Context) -> None:
        await ctx.step("slow", asyncio.sleep, 30, on_timeout="permanent")

    await hasty.working()
    handle = await hasty.submitted("clerk")
    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)
    task = await handle.task()
    assert (task.reason, task.dispatch_count) == ("step_timeout", 1)


@pytest.mark.covers("S3.29")
async def test_the_next_turn_tries_a_timed_out_step_again(hasty: World) -> None:
    @hasty.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> str:
        seconds, timeout = (30, None) if ctx.retry_count == 0 else (0, 60)
        await ctx.step("slow", asyncio.sleep, seconds, timeout=timeout)
        return "done"

    await hasty.working()
    handle = await hasty.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == "done"
    kinds = [fact.result_type for fact in await recorded(hasty, handle)]
    assert kinds == ["retryable_failure", "success"]


@pytest.mark.covers("S3.25")
async def test_the_most_specific_timeout_counts(hasty: World) -> None:
    @hasty.app.agent("agent", retries=0, step_timeout=1.0)
    async def by_agent(ctx: Context) -> None:
        await ctx.step("longer-than-the-setting", asyncio.sleep, 0.2)
        await ctx.step("longer-than-the-agent-says", asyncio.sleep, 1.2, timeout=60)
        await ctx.step("too-long", asyncio.sleep, 30)

    await hasty.working()
    handle = await hasty.submitted("agent")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert "'too-long' took longer than 1 s" in failed.value.deliverable["error"]["message"]
    assert [fact.result_type for fact in await recorded(hasty, handle)] == [
        "success",
        "success",
        "retryable_failure",
    ]


async def test_a_function_that_swallows_its_cancellation_has_timed_out(hasty: World) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "late"
        return "never"

    @hasty.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> Any:
        return await ctx.step("slow", stubborn)

    await hasty.working()
    handle = await hasty.submitted("clerk")
    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)
    assert [fact.card for fact in await recorded(hasty, handle)] == [None]


async def test_a_timeout_error_of_the_function_is_not_a_step_timeout(hasty: World) -> None:
    def gives_up() -> None:
        raise TimeoutError("the service is slow")

    @hasty.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.step("ask", gives_up)

    await hasty.working()
    handle = await hasty.submitted("clerk")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "api_failure"
    assert await recorded(hasty, handle) == []


async def test_a_late_thread_keeps_the_slot_of_its_turn_and_the_turn_ends_at_once(hasty: World) -> None:
    let_go = threading.Event()

    @hasty.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.step("slow", let_go.wait, PATIENCE_SECONDS)

    worker = await hasty.working(concurrency=1)
    first = await hasty.submitted("clerk")
    with pytest.raises(TaskFailed):
        await first.result(PATIENCE_SECONDS)
    second = await hasty.submitted("clerk")
    await hasty.store.now()

    assert worker._turns.slots_taken == 1
    assert worker._turns.live_turns() == ()
    assert (await second.task()).status == "queued"
    let_go.set()
    await second.result(PATIENCE_SECONDS)


@pytest.mark.covers("S3.20")
async def test_a_step_that_outlasts_the_reap_limit_is_waited_for(world: World) -> None:
    """The limit is 300 s; the step may take 1,000 s, and its worker says so before it begins."""
    go_on = asyncio.Event()

    @world.app.agent("clerk")
    async def run(ctx: Context) -> str:
        await ctx.step("short", asyncio.sleep, 0)
        await ctx.step("long", go_on.wait, timeout=1000)
        return "done"

    await world.working()
    pmo = await world.supervisor()
    handle = await world.submitted("clerk")
    await eventually(lambda: _has(world, handle, "step.started"))
    for _ in range(9):
        world.clock.advance(100)
        await eventually(lambda: _is_renewed(world))
        await pmo.run_once()
    assert (await handle.task()).status == "running"
    go_on.set()
    assert await handle.result(PATIENCE_SECONDS) == "done"
    assert [fact.step for fact in await world.facts(handle, "step.started")] == ["1:()long#1"]


async def _has(world: World, handle: AsyncHandle, kind: str) -> bool:
    return bool(await world.facts(handle, kind))


async def _is_renewed(world: World) -> bool:
    now = await world.store.now()
    return any(
        session.kind == "worker" and session.lease_until > now
        for session in await world.store.open_sessions(world.namespace)
    )


@pytest.mark.covers("S3.11", "S3.20", "S3.22", "S3.45")
async def test_a_long_step_is_shown_with_its_worker_and_start(world: World) -> None:
    go_on = asyncio.Event()

    @world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        await ctx.gather(ctx.step("wait", go_on.wait))

    worker = await world.working(name="anna")
    handle = await world.submitted("clerk")
    await world.in_status(handle, "running")
    began = world.clock.now_us()
    await eventually(lambda: bool(worker._turns.running_steps()))
    world.clock.advance(2)

    async def is_told() -> bool:
        return bool((await handle.why())["executing"])

    await eventually(is_told, "the heartbeat has told it")
    (doing,) = (await handle.why())["executing"]
    assert (doing["step"], doing["worker"]) == ("(1.0)wait#1", "anna")
    assert doing["since"].startswith("2023-11-14T22:13:20")
    assert began // SECOND == 1_700_000_000
    assert (await whole_task(world.store, world.namespace, handle.id))["executing"] == [doing]
    go_on.set()
    await handle.result(PATIENCE_SECONDS)
    assert (await handle.why())["executing"] == []
