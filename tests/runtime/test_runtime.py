"""Tests of `Runtime`: sleeping, spawning, waiting and threads."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import gc
import logging
import threading

import pytest

from endwell.runtime import Runtime
from endwell.runtime.threads import start_thread
from tests.support.manual_clock import ManualClock

PATIENCE = 600.0


@pytest.fixture
def runtime() -> Runtime:
    return Runtime.system(threads=2)


def test_a_runtime_cannot_be_changed(runtime: Runtime) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        runtime.clock = ManualClock()  # type: ignore[misc]


def test_ids_follow_the_given_clock() -> None:
    first = Runtime.system(clock=ManualClock(1_000_000)).ids.new()
    later = Runtime.system(clock=ManualClock(9_000_000)).ids.new()
    assert first < later


async def test_sleeping_a_negative_time_returns_at_once(runtime: Runtime) -> None:
    began = runtime.clock.monotonic()
    await runtime.sleep(-1)
    assert runtime.clock.monotonic() - began < PATIENCE


async def test_a_timeout_cuts_the_block(runtime: Runtime) -> None:
    with pytest.raises(TimeoutError):
        async with runtime.timeout(0.01):
            await asyncio.Event().wait()


async def test_no_timeout_is_no_limit(runtime: Runtime) -> None:
    async with runtime.timeout(None) as deadline:
        await runtime.sleep(0)
    assert deadline.when() is None


async def test_waiting_says_whether_the_event_came(runtime: Runtime) -> None:
    event = asyncio.Event()
    assert await runtime.wait(event, 0.01) is False
    event.set()
    assert await runtime.wait(event, 0.01) is True


async def test_a_spawned_task_survives_without_a_reference(runtime: Runtime) -> None:
    started, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        await go.wait()
        done.set()

    runtime.spawn(work(), "work")
    await started.wait()
    gc.collect()
    go.set()
    assert await runtime.wait(done, PATIENCE)


async def test_a_spawned_failure_is_logged_once_by_name(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise LookupError("no such thing")

    task = runtime.spawn(fail(), "dispatcher")
    with pytest.raises(LookupError):
        await task
    del task
    gc.collect()
    await runtime.sleep(0)
    assert [record.getMessage() for record in caplog.records] == [
        "dispatcher failed: LookupError('no such thing')"
    ]
    assert caplog.records[0].exc_info is not None


async def test_a_cancelled_task_is_not_a_failure(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    task = runtime.spawn(asyncio.Event().wait(), "waiter")
    task.cancel()
    await asyncio.wait([task])
    await runtime.sleep(0)
    assert not caplog.records


def test_a_thread_is_a_started_named_daemon() -> None:
    seen: list[threading.Thread] = []
    thread = start_thread(lambda: seen.append(threading.current_thread()), "heartbeat")
    thread.join(PATIENCE)
    assert thread.name == seen[0].name == "heartbeat"
    assert seen[0].daemon
    assert not thread.is_alive()


def test_a_failing_thread_is_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise LookupError("gone")

    with caplog.at_level(logging.ERROR):
        start_thread(fail, "heartbeat").join(PATIENCE)
    assert "heartbeat failed: LookupError('gone')" in caplog.text


async def test_a_function_runs_in_a_named_pool_thread_and_returns(runtime: Runtime) -> None:
    def where(prefix: str) -> str:
        return prefix + threading.current_thread().name

    assert (await runtime.in_thread(where, "in ")).startswith("in endwell-sync-")


async def test_a_function_in_a_thread_sees_the_context_of_its_caller(runtime: Runtime) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")
    assert await runtime.in_thread(variable.get) == "here"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
async def test_what_a_function_raises_reaches_the_caller(runtime: Runtime, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await runtime.in_thread(fail)


async def test_stop_iteration_does_not_leave_the_caller_waiting(runtime: Runtime) -> None:
    async with runtime.timeout(PATIENCE):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await runtime.in_thread(lambda: next(iter([])))


async def test_no_more_functions_run_at_once_than_the_pool_has_threads(runtime: Runtime) -> None:
    both_running = threading.Barrier(3)
    go = threading.Event()
    started: list[int] = []

    def work(number: int) -> None:
        started.append(number)
        if number < 2:
            both_running.wait(PATIENCE)
        go.wait(PATIENCE)

    calls = [runtime.spawn(runtime.in_thread(work, number), f"call {number}") for number in range(4)]
    await asyncio.to_thread(both_running.wait, PATIENCE)
    assert sorted(started) == [0, 1]
    go.set()
    await asyncio.gather(*calls)
    assert sorted(started) == [0, 1, 2, 3]


async def test_a_cancelled_call_keeps_its_thread_and_its_late_result_is_discarded() -> None:
    runtime = Runtime.system(threads=1)
    started, go = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        started.set()
        go.wait(PATIENCE)
        order.append("slow")

    call = runtime.spawn(runtime.in_thread(slow), "slow")
    await asyncio.to_thread(started.wait, PATIENCE)
    never = runtime.spawn(runtime.in_thread(order.append, "never"), "never")
    await runtime.sleep(0)
    call.cancel()
    never.cancel()
    await asyncio.wait([call, never])
    assert order == []
    go.set()
    await runtime.in_thread(order.append, "next")
    assert order == ["slow", "next"]


async def test_threads_are_used_again(runtime: Runtime) -> None:
    names = {await runtime.in_thread(lambda: threading.current_thread().name) for _ in range(50)}
    assert len(names) <= 2
