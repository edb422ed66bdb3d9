"""A worker that is stopped: it finishes what ends in time, and hands back the rest."""

from __future__ import annotations

import asyncio

from tests.patience import PATIENCE_SECONDS
from tests.support.world import World


async def test_a_stopped_worker_claims_nothing_and_hands_back_what_it_cannot_finish(
    quick_world: World,
) -> None:
    world = quick_world
    began = asyncio.Event()

    @world.app.agent("endless")
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    worker = await world.started_worker(concurrency=1)
    run = asyncio.get_running_loop().create_task(worker.run())
    held, waiting = [await world.submitted("endless") for _ in range(2)]
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    before = await held.task()
    worker.stop()
    await asyncio.wait_for(run, PATIENCE_SECONDS)
    after = await held.task()

    assert (after.status, await waiting.status()) == ("queued", "queued")
    assert (after.retry_count, after.dispatch_count, after.crash_count) == (0, before.dispatch_count, 0)
    assert (await world.history(held))[-1] == "task.handed_back"
    assert "write.refused" not in await world.history(held)

    await world.working()
    await world.in_status(held, "running")
    again = await held.task()
    assert again.dispatch_count == before.dispatch_count, "a hand-back costs the task nothing"
    assert again.attempt_id != before.attempt_id
    await held.cancel()
    await waiting.cancel()


async def test_a_stopped_worker_finishes_what_ends_in_time(world: World) -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    @world.app.agent("short")
    async def short() -> str:
        began.set()
        await gate.wait()
        return "in time"

    worker = await world.started_worker()
    run = asyncio.get_running_loop().create_task(worker.run())
    handle = await world.submitted("short")
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    worker.stop()
    gate.set()
    await asyncio.wait_for(run, PATIENCE_SECONDS)
    assert await handle.result(PATIENCE_SECONDS) == "in time"
