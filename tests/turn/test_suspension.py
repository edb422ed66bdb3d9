"""A turn that waits holds no worker: sleeping, and waiting for a signal."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from endwell import Context, TaskFailed
from endwell.errors import BadInput, SignalTimeout, TaskEnded
from endwell.model.moments import SECOND
from endwell.runtime import SystemClock
from tests.patience import PATIENCE_SECONDS
from tests.support.world import TINY, World, eventually, terminal
from tests.turn.suspended_turns import suspended

DAYS = 86_400


class TestSleeping:
    async def test_a_sleep_of_three_days_holds_no_worker_and_ends_on_time(self, world: World) -> None:
        began = 0

        @world.app.agent("patient", deadline=timedelta(days=5))
        async def patient(ctx: Context) -> str:
            nonlocal began
            began += 1
            await ctx.sleep(timedelta(days=3))
            return "rested"

        worker = await world.working()
        handle = await world.submitted("patient")
        task = await suspended(world, handle)

        assert (task.attempt_id, task.session_id) == (None, None)
        await eventually(lambda: worker._turns.slots_taken == 0, "the worker's slot is free")
        assert task.clock_rule == "inject_timeout"
        assert task.clock_at is not None
        assert task.clock_at - task.updated_at == 3 * DAYS * SECOND
        world.clock.advance(3 * DAYS - 60)
        await worker.watchdog.run_once()
        assert (await handle.task()).status == "suspended"
        world.clock.advance(60)
        await worker.watchdog.run_once()
        assert await handle.result(PATIENCE_SECONDS) == "rested"
        assert began == 2
        assert (await handle.task()).dispatch_count == 1, "a resume is not a delivery"

    async def test_a_sleep_of_one_second_takes_about_one_second(self, store_url: str) -> None:
        rarely = ("worker.poll_seconds", "worker.watchdog_interval_seconds", "pmo.watchdog_interval_seconds")
        settings = {**TINY, **dict.fromkeys(rarely, 600.0)}
        async with World(store_url, settings=settings, clock=SystemClock()) as world:

            @world.app.agent("napper")
            async def napper(ctx: Context) -> str:
                await ctx.sleep(0.3)
                await ctx.sleep(timedelta(seconds=0.3))
                return "awake"

            await world.working()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await (await world.submitted("napper")).result() == "awake"

    async def test_a_sleep_that_cannot_end_in_time_is_refused_at_once(self, world: World) -> None:
        refusals = []

        @world.app.agent("late", retries=3, deadline=60)
        async def late(ctx: Context) -> None:
            try:
                await ctx.sleep(61)
            except BadInput as refusal:
                refusals.append(refusal)
                raise

        await world.working()
        handle = await world.submitted("late")
        with pytest.raises(TaskFailed, match="longer deadline="):
            await handle.result(PATIENCE_SECONDS)
        assert [(r.code, r.field) for r in refusals] == [("beyond_deadline", "deadline")], "and not retried"
        assert "deadline=" in (refusals[0].hint or "")
        assert (await handle.task()).reason == "beyond_deadline"

    async def test_a_sync_agent_sleeps_without_await(self, world: World) -> None:
        @world.app.agent("thread")
        def thread(ctx: Any) -> str:
            ctx.sleep(5)
            return "rested"

        worker = await world.working()
        handle = await world.submitted("thread")
        await suspended(world, handle)
        world.clock.advance(5)
        await worker.watchdog.run_once()
        assert await handle.result(PATIENCE_SECONDS) == "rested"


class TestSignals:
    async def test_a_signal_resumes_the_turn_that_waits_for_it(self, world: World) -> None:
        @world.app.agent("listener")
        async def listener(ctx: Context) -> list[Any]:
            return [await ctx.wait_signal("go", result=int), await ctx.wait_signal("go", result=int)]

        await world.working()
        handle = await world.submitted("listener")
        await suspended(world, handle)
        await world.client.signal(handle.id, "other", 0)
        assert (await handle.task()).status == "suspended"
        await world.client.signal(handle.id, "go", 1)
        await world.client.signal(handle.id, "go", 2)
        assert await handle.result(PATIENCE_SECONDS) == [1, 2]

    async def test_a_signal_that_comes_early_is_kept(self, world: World) -> None:
        @world.app.agent("listener")
        async def listener(ctx: Context) -> Any:
            return await ctx.wait_signal("go")

        await world.registered("listener")
        handle = await world.submitted("listener")
        await world.client.signal(handle.id, "go", {"now": True})
        await world.working()
        assert await handle.result(PATIENCE_SECONDS) == {"now": True}
        with pytest.raises(TaskEnded):
            await world.client.signal(handle.id, "go", 2)

    async def test_a_missing_signal_raises_signal_timeout(self, world: World) -> None:
        @world.app.agent("listener")
        async def listener(ctx: Context) -> str:
            try:
                await ctx.wait_signal("go", within=60)
            except SignalTimeout:
                return "in vain"
            return "heard"

        worker = await world.working()
        handle = await world.submitted("listener")
        await suspended(world, handle)
        world.clock.advance(60)
        await worker.watchdog.run_once()
        assert await handle.result(PATIENCE_SECONDS) == "in vain"


async def test_messages_that_come_faster_than_turns_finish_do_not_keep_a_task_from_ending(
    quick_world: World,
) -> None:
    """E6: each wait takes one of them, the rest is kept; nothing goes round for their sake."""
    world, waits, flood = quick_world, 5, 100

    @world.app.agent("listener")
    async def listener(ctx: Context) -> list[int]:
        return [await ctx.wait_signal("go") for _ in range(waits)]

    await world.working()
    handle = await world.submitted("listener")
    with contextlib.suppress(TaskEnded):  # it need not hear all of them
        for number in range(flood):
            await world.client.signal(handle.id, "go", number)
    assert await handle.result(PATIENCE_SECONDS) == list(range(waits))
    history = await world.history(handle)
    assert history.count("task.suspended") <= waits
    assert history.count("task.claimed") <= waits + 1
    assert len(terminal(history)) == 1
