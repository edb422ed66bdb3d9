"""Loops that submit a new task each time: the runaway guard counts along the chain of causes."""

from __future__ import annotations

from typing import Any

import pytest

from endwell import AsyncHandle, Context
from endwell.model.task import Task
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually

LIMIT = 10


async def all_ended(world: World) -> list[Task]:
    """Wait until no task lives and no clock is due; return all tasks."""
    pmo = await world.supervisor()

    async def at_rest() -> bool:
        world.clock.advance(5)
        await pmo.watchdog.run_once()
        return not set(await world.counts()) - {"succeeded", "failed", "timeout", "cancelled"}

    await eventually(at_rest)
    return await world.store.tasks_page(world.namespace, limit=1000)


@pytest.mark.covers("T13", "S2.6")
async def test_failure_notices_that_fail_themselves_stop_at_the_runaway_limit(world: World) -> None:
    """Each notice fails and submits another: no single task is delivered often."""

    @world.app.agent("mail", retries=0)
    async def mail(ctx: Context, about: str) -> None:
        await world.client.submit("mail", f"{ctx.task_id} failed")
        raise ConnectionError("the mail server is down")

    await world.working()
    await world.submitted("mail", "hello")
    tasks = await all_ended(world)
    assert len(tasks) == LIMIT
    reasons = {task.reason for task in tasks}
    assert reasons == {"api_retries_exhausted", "runaway_guard"}
    last = max(tasks, key=lambda task: task.id)
    assert (last.reason, last.dispatch_count, last.dead_letter) == ("runaway_guard", 0, "open")
    assert sum(task.reason == "runaway_guard" for task in tasks) == 1


@pytest.mark.covers("T13")
async def test_a_program_outside_links_its_task_with_caused_by(sqlite_world: World) -> None:
    @sqlite_world.app.agent("report", retries=0)
    async def report(about: Any) -> None:
        raise ValueError("no")

    await sqlite_world.working()
    handle = await sqlite_world.submitted("report")
    count = 0
    while (await sqlite_world.client.wait_ended(handle.id, 10)).reason != "runaway_guard":
        handle = await noticed(sqlite_world, handle)
        count += 1
        assert count < LIMIT
    assert count == LIMIT - 1


async def noticed(world: World, handle: AsyncHandle) -> AsyncHandle:
    notice = await world.submitted("report", caused_by=handle.id)
    pmo = await world.supervisor()

    async def over() -> bool:
        await pmo.watchdog.run_once()
        return (await notice.task()).is_ended

    await eventually(over)
    assert (await notice.task()).parent_id == handle.id
    return notice


async def test_a_task_that_submits_its_successor_detached_starts_a_new_chain(sqlite_world: World) -> None:
    @sqlite_world.app.agent("daily")
    async def daily(day: int) -> int:
        if day < 2 * LIMIT:
            await sqlite_world.client.submit("daily", day + 1, detached=True)
        return day

    await sqlite_world.working()
    await sqlite_world.submitted("daily", 1)
    tasks = await all_ended(sqlite_world)
    assert len(tasks) == 2 * LIMIT
    assert {task.status for task in tasks} == {"succeeded"}


async def test_calls_are_bounded_by_their_depth_and_do_not_count(sqlite_world: World) -> None:
    @sqlite_world.app.agent("nested")
    async def nested(ctx: Context, depth: int) -> int:
        return 0 if depth == 0 else 1 + int(await ctx.call("nested", depth - 1))

    await sqlite_world.working()
    handle = await sqlite_world.submitted("nested", LIMIT + 3)
    assert await handle.result(PATIENCE_SECONDS) == LIMIT + 3
