"""Limits that end a task: deadlines, retries, crashes, the runaway guard."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from endwell import AsyncHandle, Context, Fail, Retry, StaleAttempt, TaskFailed
from endwell.model.moments import SECOND
from tests.patience import PATIENCE_SECONDS
from tests.support.world import START_US, World, eventually, terminal


@pytest.mark.covers("S2.22", "S4.53")
async def test_a_task_whose_holders_die_three_times_ends_with_the_crash_limit(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    pmo = await clerk.supervisor()
    for crash in (1, 2, 3):
        session = await clerk.silent_session("clerk")
        assert await clerk.claimed(session, "clerk")
        clerk.clock.advance(31)
        await pmo.reclaimer.run_once()
        task = await handle.task()
        assert (task.status, task.crash_count) == ("queued", crash), "a reclaim never ends a task"
    await pmo.watchdog.run_once()

    task = await handle.task()
    assert (task.status, task.reason, task.dead_letter) == ("failed", "crash_limit", "open")
    history = await clerk.history(handle)
    assert terminal(history) == ["task.failed"]
    assert history[-1] == "task.dlq"


@pytest.mark.covers("S2.22")
async def test_crashes_outside_the_window_do_not_add_up(clerk: World) -> None:
    handle = await clerk.submitted("clerk", deadline=864_000)
    pmo = await clerk.supervisor()
    for _ in range(4):
        session = await clerk.silent_session("clerk")
        assert await clerk.claimed(session, "clerk")
        clerk.clock.advance(1801)
        await pmo.reclaimer.run_once()
        await pmo.watchdog.run_once()
    task = await handle.task()
    assert (task.status, task.crash_count) == ("queued", 1)


@pytest.mark.parametrize(("agent", "channel"), [("clerk", "main"), ("clerk", "mail"), ("clerk/key", "tools")])
@pytest.mark.covers("S2.3", "S2.4", "S2.5", "S2.6", "S2.10", "S2.15", "S2.26", "S2.27", "S2.30", "T12")
async def test_the_runaway_guard_ends_a_task_at_its_tenth_delivery(
    clerk: World, agent: str, channel: str
) -> None:
    """Every holder is lost outside the crash window, so that no other limit applies.

    Each turn is claimed from the queue without an offer.
    """
    handle = await clerk.submitted(agent, channel=channel, deadline=864_000)
    pmo = await clerk.supervisor()
    counts = []
    while not (await handle.task()).is_ended:
        session = await clerk.silent_session("clerk", lease_seconds=1)
        assert await clerk.claimed(session, "clerk")
        counts.append((await handle.task()).dispatch_count)
        clerk.clock.advance(1801)
        await pmo.reclaimer.run_once()
        await pmo.watchdog.run_once()
        assert len(counts) <= 10
    task = await handle.task()
    assert counts == list(range(1, 11))
    assert (task.status, task.reason, task.dispatch_count) == ("failed", "runaway_guard", 10)
    assert task.dead_letter == "open"
    assert terminal(await clerk.history(handle)) == ["task.failed"]


@pytest.mark.parametrize("status", ["queued", "running", "dispatched"])
@pytest.mark.covers("S2.3", "S2.16", "S2.18", "S2.19", "S2.20", "S2.26")
async def test_the_runaway_guard_comes_before_every_timeout_in_every_status(
    clerk: World, status: str
) -> None:
    """At the tenth dispatch the guard and, later, a timeout are due: the guard gives the reason."""
    handle = await clerk.submitted("clerk", deadline=864_000)
    pmo = await clerk.supervisor()
    for _ in range(9):
        session = await clerk.silent_session("clerk", lease_seconds=1)
        assert await clerk.claimed(session, "clerk")
        clerk.clock.advance(1801)
        await pmo.reclaimer.run_once()
    last = await clerk.silent_session("clerk", lease_seconds=1 if status == "queued" else 86_400)
    if status == "running":
        assert await clerk.claimed(last, "clerk")
    elif status == "queued":
        assert await clerk.claimed(last, "clerk")
        clerk.clock.advance(2)
        assert await pmo.reclaimer.run_once() == 1
    else:
        clerk.clock.advance(2)
        assert await pmo.dispatcher.run_once() == 1
    assert (await handle.task()).status == status
    clerk.clock.advance(400)  # past the dispatch timeout and past the reaping, too
    await pmo.watchdog.run_once()
    task = await handle.task()
    assert (task.status, task.reason) == ("failed", "runaway_guard")


@pytest.mark.covers("S2.17", "S4.12")
async def test_a_task_that_has_ended_is_left_alone(clerk: World) -> None:
    await clerk.working()
    handle = await clerk.submitted("clerk", deadline=60)
    assert await handle.result(PATIENCE_SECONDS) == "done"
    before = await handle.task()
    clerk.clock.advance(3600)
    await (await clerk.supervisor()).run_once()
    assert await handle.task() == before


@pytest.mark.parametrize("status", ["queued", "delayed", "dispatched", "running"])
async def test_every_task_ends_by_its_deadline_in_every_status(clerk: World, status: str) -> None:
    session = await clerk.silent_session("clerk", lease_seconds=86_400)
    handle = await clerk.submitted("clerk", deadline=100, delay=50 if status == "delayed" else None)
    pmo = await clerk.supervisor()
    held: Any = None
    if status == "dispatched":
        clerk.clock.advance(2)
        await pmo.dispatcher.run_once()
    elif status == "running":
        (held,) = await clerk.claimed(session, "clerk")
    assert (await handle.task()).status == status.replace("delayed", "queued")
    clerk.clock.advance(160)
    await pmo.watchdog.run_once()

    task = await handle.task()
    assert (task.status, task.reason, task.dead_letter) == ("timeout", "ends_by", "open")
    if held is not None:
        with pytest.raises(StaleAttempt):
            await session.finish(held)
        assert await session.beat(held) == (held.task.attempt_id,), "the worker learns that it lost the task"
    assert terminal(await clerk.history(handle)) == ["task.timeout"]


async def test_a_running_agent_that_misses_the_deadline_is_stopped(world: World) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @world.app.agent("long", deadline=60)
    async def long() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await world.working()
    handle = await world.submitted("long")
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    world.clock.advance(61)
    await (await world.supervisor()).watchdog.run_once()
    await asyncio.wait_for(stopped.wait(), PATIENCE_SECONDS)
    assert (await handle.task()).reason == "ends_by"


@pytest.mark.covers("T7")
async def test_a_live_worker_without_progress_is_reaped(clerk: World) -> None:
    session = await clerk.silent_session("clerk", lease_seconds=86_400)
    handle = await clerk.submitted("clerk")
    (held,) = await clerk.claimed(session, "clerk")
    pmo = await clerk.supervisor()
    clerk.clock.advance(299)
    await session.beat(held)
    await pmo.watchdog.run_once()
    assert (await handle.task()).status == "running"
    clerk.clock.advance(2)
    await session.beat(held)
    await pmo.watchdog.run_once()
    task = await handle.task()
    assert (task.status, task.reason, task.retry_count) == ("queued", "timeout_reaped_by_watchdog", 1)
    with pytest.raises(StaleAttempt):
        await session.finish(held)


async def run_out(world: World, handle: AsyncHandle) -> list[float]:
    """The seconds between failures and retries, until the task has ended."""
    waits: list[float] = []
    while not (await handle.task()).is_ended:
        count = len(waits)

        async def moved(count: int = count) -> bool:
            task = await handle.task()
            return task.is_ended or task.retry_count > count

        await eventually(moved)
        task = await handle.task()
        if not task.is_ended:
            failed_at = [e.at for e in await world.events(handle) if e.type == "task.retry_scheduled"][-1]
            waits.append((task.run_at - failed_at) / SECOND)
            world.clock.advance(waits[-1] + 0.01)
    return waits


@pytest.mark.covers("S4.29", "S4.30", "S4.31", "S4.36", "T18", "S2.23", "S4.10")
async def test_three_retries_are_four_executions_with_growing_waits(world: World) -> None:
    runs: list[int] = []

    @world.app.agent("flaky")
    async def flaky() -> None:
        runs.append(1)
        raise ConnectionError("the API is down")

    await world.working()
    handle = await world.submitted("flaky")
    assert await run_out(world, handle) == pytest.approx([0.5, 1.0, 2.0], abs=0.001)
    assert len(runs) == 4
    with pytest.raises(TaskFailed, match="the API is down") as failed:
        await handle.result(PATIENCE_SECONDS)
    task = failed.value.task
    assert (task.reason, task.retry_count, task.dead_letter) == ("api_retries_exhausted", 4, "open")
    letter = await world.store.dead_letter(world.namespace, handle.id)
    assert (letter.status, letter.retry_count) == ("open", 4)
    assert terminal(await world.history(handle)) == ["task.failed"]


@pytest.mark.covers("S4.31")
async def test_a_list_of_delays_is_followed_and_its_last_one_repeats(world: World) -> None:
    @world.app.agent("patient", retries=4, delays=[60, 300, 900])
    async def patient() -> None:
        raise ValueError("no")

    await world.working()
    handle = await world.submitted("patient")
    assert await run_out(world, handle) == pytest.approx([60, 300, 900, 900], abs=0.001)
    assert (await handle.task()).dispatch_count == 5


@pytest.mark.covers("S4.31")
async def test_jitter_spreads_the_retries_of_many_tasks(sqlite_url: str) -> None:
    async with World(sqlite_url, settings={"retry.jitter": 0.5, "retry.base_seconds": 100}) as world:

        @world.app.agent("flaky")
        async def flaky(number: int) -> None:
            raise ValueError("no")

        await world.working()
        handles = await world.client.submit_many("flaky", range(30))
        for handle in handles:

            async def scheduled(handle: AsyncHandle = handle) -> bool:
                return (await handle.task()).retry_count == 1

            await eventually(scheduled)
        waits = [((await handle.task()).run_at - START_US) / SECOND for handle in handles]
    assert all(50 <= wait < 150 for wait in waits)
    assert len({round(wait) for wait in waits}) > 10


class Overloaded(Exception):
    """An error with a Retry-After, as HTTP clients raise it."""

    status_code = 503


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (Overloaded("later"), "api_retries_exhausted"),
        (TimeoutError("slow"), "api_retries_exhausted"),
        (Retry("more to do", after=0.1), "continuations_exhausted"),
        (ValueError("no"), "retries_exhausted"),
        (Fail("never"), "agent_gave_up"),
    ],
    ids=["api", "timeout", "continuation", "exception", "gave up"],
)
@pytest.mark.covers("S2.23", "S2.24")
async def test_each_limit_ends_a_task_with_its_own_reason(
    sqlite_world: World, raised: Exception, reason: str
) -> None:
    @sqlite_world.app.agent("doomed")
    async def doomed() -> None:
        raise raised

    await sqlite_world.working()
    handle = await sqlite_world.submitted("doomed")
    await run_out(sqlite_world, handle)
    task = await handle.task()
    assert (task.status, task.reason, task.dead_letter) == ("failed", reason, "open")
    assert task.retry_count == (1 if reason == "agent_gave_up" else 4)


@pytest.mark.covers("S2.25")
async def test_a_working_timeout_ends_as_done_when_the_work_is_recorded_and_as_failed_when_it_is_not(
    sqlite_world: World,
) -> None:
    """Both hang after their work; the next turn of the one that recorded it finds it complete."""
    world = sqlite_world
    computed: list[str] = []
    hanging: set[tuple[str, int]] = set()

    def compute(what: str) -> str:
        computed.append(what)
        return what.upper()

    async def hang(ctx: Context) -> None:
        hanging.add((ctx.task_id, ctx.retry_count))
        await asyncio.Event().wait()

    @world.app.agent("recording", retries=1)
    async def recording(ctx: Context) -> str:
        value = str(await ctx.step("compute", compute, "recorded"))
        if ctx.retry_count == 0:
            await hang(ctx)
        return value

    @world.app.agent("careless", retries=1)
    async def careless(ctx: Context) -> str:
        computed.append("careless")
        await hang(ctx)
        return "never"

    await world.working()
    handles = [await world.submitted("recording"), await world.submitted("careless")]
    pmo = await world.supervisor()

    async def over() -> bool:
        tasks = [await handle.task() for handle in handles]
        hangs = all(task.is_ended or (task.id, task.retry_count) in hanging for task in tasks)
        world.clock.advance(301 if hangs else 1)  # time for the claims and for the work
        await pmo.watchdog.run_once()
        return all(task.is_ended for task in tasks)

    await eventually(over)
    done, failed = [await handle.task() for handle in handles]
    assert (done.status, await handles[0].result(PATIENCE_SECONDS)) == ("succeeded", "RECORDED")
    assert (failed.status, failed.reason) == ("failed", "retries_exhausted")
    assert computed.count("recorded") == 1
