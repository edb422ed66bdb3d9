"""Steps whose worker dies or whose turn is lost, and steps that raise what is no error."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from endwell import Context, SyncContext, TaskFailed
from endwell.errors import StaleAttempt
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually
from tests.turn.outside_calls import Counting, recorded


async def test_a_crashed_workers_steps_are_not_run_again_by_the_next(world: World) -> None:
    seen = Counting()
    stuck = asyncio.Event()

    @world.app.agent("clerk")
    async def run(ctx: Context) -> Any:
        one = await ctx.step("one", seen, 1)
        if not stuck.is_set():
            stuck.set()
            await asyncio.Event().wait()
        return one + await ctx.step("two", seen, 2)

    first = await world.working(await world.another_node())
    handle = await world.submitted("clerk")
    await stuck.wait()
    first._turns.abandon_all()  # as if its process had ended
    assert first._session._heartbeat is not None
    await first._session._heartbeat.stop()  # a last beat after the clock has moved would renew the lease
    world.clock.advance(31)
    pmo = await world.supervisor()
    await world.working()

    async def ended() -> bool:
        await pmo.run_once()
        return (await handle.task()).is_ended

    await eventually(ended)
    assert await handle.result(PATIENCE_SECONDS) == 3
    assert seen.calls == [1, 2]


async def test_a_stale_attempt_records_nothing(world: World) -> None:
    go_on = asyncio.Event()
    seen: list[BaseException] = []

    @world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        await go_on.wait()
        try:
            await ctx.step("late", lambda: 1)
        except BaseException as error:
            seen.append(error)
            raise

    worker = await world.working()
    handle = await world.submitted("clerk")
    await world.in_status(handle, "running")
    await handle.cancel()
    go_on.set()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert all(isinstance(error, StaleAttempt | asyncio.CancelledError) for error in seen)
    assert await recorded(world, handle) == []


async def test_a_thread_learns_at_its_next_verb_that_its_turn_is_lost(world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()
    seen: list[BaseException] = []

    @world.app.agent("clerk")
    def run(ctx: SyncContext) -> None:
        inside.set()
        go_on.wait(PATIENCE_SECONDS)
        try:
            ctx.step("late", lambda: 1)
        except StaleAttempt as error:
            seen.append(error)
            raise

    worker = await world.working()
    handle = await world.submitted("clerk")
    await eventually(inside.is_set)
    worker._turns.abandon_all()
    go_on.set()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert len(seen) == 1
    assert await recorded(world, handle) == []


async def test_a_thread_waiting_in_a_verb_learns_of_the_loss_at_once(world: World) -> None:
    inside = threading.Event()
    seen: list[BaseException] = []

    async def never() -> None:
        inside.set()
        await asyncio.Event().wait()

    @world.app.agent("clerk")
    def run(ctx: SyncContext) -> None:
        try:
            ctx.step("hangs", never)
        except StaleAttempt as error:
            seen.append(error)
            raise

    worker = await world.working()
    await world.submitted("clerk")
    await eventually(inside.is_set)
    worker._turns.abandon_all()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_any_exception_of_a_step_ends_only_its_turn(
    sqlite_world: World, kind: str, error: BaseException
) -> None:
    async def raises() -> None:
        raise error

    @sqlite_world.app.agent("async", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.gather(ctx.step("one", raises), ctx.step("two", raises))

    @sqlite_world.app.agent("sync", retries=0)
    def run_in_thread(ctx: SyncContext) -> None:
        ctx.gather(lambda: ctx.step("one", raises), lambda: ctx.step("two", raises))

    @sqlite_world.app.agent("well")
    async def well() -> str:
        return "fine"

    worker = await sqlite_world.working()
    with pytest.raises(TaskFailed):
        await (await sqlite_world.submitted(kind)).result(PATIENCE_SECONDS)
    assert await (await sqlite_world.submitted("well")).result(PATIENCE_SECONDS) == "fine"
    assert worker.failures == 0
