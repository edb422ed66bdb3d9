"""The registry of effect calls in progress: what a call's function starts is part of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context

import pytest

from endwell.runtime.followed_work import follow_work
from endwell.runtime.running_calls import CURRENT_CALL, RunningCall, RunningCalls
from tests.support.world import eventually


def begun(calls: RunningCalls, key: str = "k") -> RunningCall | None:
    return calls.begin(key, "attempt", "step", 0)


@contextmanager
def inside(calls: RunningCalls) -> Iterator[RunningCall]:
    """An effect's function, from its start to its return."""
    call = begun(calls)
    assert call is not None
    token = CURRENT_CALL.set(call)
    try:
        yield call
    finally:
        CURRENT_CALL.reset(token)
        call.has_returned = True


def test_a_key_with_a_call_in_progress_is_refused_and_free_when_the_call_is_over() -> None:
    calls = RunningCalls()
    first = begun(calls)
    assert first is not None
    assert begun(calls) is None
    assert begun(calls, "other") is not None
    first.has_returned = True
    assert begun(calls) is not None


async def test_task_with_a_context_of_its_own_is_part_of_the_call() -> None:
    loop = asyncio.get_running_loop()
    follow_work(loop)
    release = asyncio.Event()
    with inside(RunningCalls()) as call:
        task = loop.create_task(release.wait(), context=Context())
    assert not call.is_over
    release.set()
    await task
    assert call.is_over


def test_threads_that_begin_calls_at_once_lose_none_of_them() -> None:
    calls = RunningCalls()
    with ThreadPoolExecutor(8) as pool:
        per_key = list(pool.map(lambda n: begun(calls, f"k{n // 4}"), range(400)))
    assert sum(call is not None for call in per_key) == 100
    assert len(calls.in_progress()) == 100


async def test_the_threads_of_an_executor_are_no_part_of_the_call_but_what_it_runs_is() -> None:
    follow_work(asyncio.get_running_loop())
    release = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with inside(RunningCalls()) as call:
            future = pool.submit(release.wait)
        assert not call.is_over
        release.set()
        future.result()
        assert call.is_over, "the executor's thread is still there"


@pytest.mark.parametrize("is_daemon", [True, False])
async def test_a_thread_of_the_function_s_own_is_part_of_the_call_unless_it_is_a_daemon(
    is_daemon: bool,
) -> None:
    follow_work(asyncio.get_running_loop())
    release = threading.Event()
    thread = threading.Thread(target=release.wait, daemon=is_daemon)
    with inside(RunningCalls()) as call:
        thread.start()
    assert call.is_over is is_daemon
    release.set()
    thread.join()
    assert call.is_over


@pytest.mark.parametrize("shell", [True, False])
async def test_a_subprocess_of_the_event_loop_is_part_of_the_call_until_it_ends(shell: bool) -> None:
    follow_work(asyncio.get_running_loop())
    start: Callable[..., object] = (
        asyncio.create_subprocess_shell if shell else asyncio.create_subprocess_exec
    )
    with inside(RunningCalls()) as call:
        process = await start("cat", stdin=asyncio.subprocess.PIPE)  # type: ignore[misc]
    assert not call.is_over
    process.stdin.close()
    await process.wait()
    assert call.is_over


def in_thread(function: Callable[[], object], *, daemon: bool) -> None:
    thread = threading.Thread(target=function, daemon=daemon)
    thread.start()
    thread.join()


async def test_a_thread_that_only_inherits_that_it_is_a_daemon_is_part_of_the_call() -> None:
    follow_work(asyncio.get_running_loop())
    release, calls = threading.Event(), RunningCalls()
    begun_calls: list[RunningCall] = []

    def effect() -> None:
        with inside(calls) as call:
            begun_calls.append(call)
            timer = threading.Timer(0, release.wait)
            timer.start()
            assert timer.daemon

    await asyncio.to_thread(in_thread, effect, daemon=True)
    assert not begun_calls[0].is_over
    release.set()
    await eventually(lambda: begun_calls[0].is_over, "the timer has ended")


@pytest.mark.parametrize("first", ["pool", "thread"])
async def test_what_a_followed_thread_starts_is_part_of_the_call(first: str) -> None:
    follow_work(asyncio.get_running_loop())
    release = threading.Event()
    with ThreadPoolExecutor(1) as outer, ThreadPoolExecutor(1) as inner:

        def start() -> None:
            inner.submit(release.wait)

        with inside(RunningCalls()) as call:
            if first == "pool":
                outer.submit(start).result()
            else:
                in_thread(start, daemon=False)
        was_over = call.is_over
        release.set()
    assert (was_over, call.is_over) == (False, True)


async def test_what_is_handed_to_the_loop_of_another_thread_is_part_of_the_call() -> None:
    follow_work(asyncio.get_running_loop())
    other, release = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=other.run_forever)
    with inside(RunningCalls()) as call:
        waiting = asyncio.run_coroutine_threadsafe(release.wait(), other)
    assert not call.is_over, "the loop has not begun with it"
    thread.start()
    waiting.cancel()
    other.call_soon_threadsafe(release.set)
    await eventually(lambda: call.is_over, "the other loop has ended it")
    other.call_soon_threadsafe(other.stop)
    await asyncio.to_thread(thread.join)
    other.close()


async def test_a_task_on_the_loop_of_another_thread_is_part_of_the_call() -> None:
    follow_work(asyncio.get_running_loop())
    other, release = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    has_begun = threading.Event()

    async def work() -> None:
        has_begun.set()
        await release.wait()

    with inside(RunningCalls()) as call:
        asyncio.run_coroutine_threadsafe(work(), other)
    await asyncio.to_thread(has_begun.wait)
    assert not call.is_over
    other.call_soon_threadsafe(release.set)
    await eventually(lambda: call.is_over, "the other loop has ended it")
    other.call_soon_threadsafe(other.stop)
    await asyncio.to_thread(thread.join)
    other.close()
