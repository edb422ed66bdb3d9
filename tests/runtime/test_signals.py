"""Tests of stop signals: the first asks, the second works even on a blocked loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from endwell.errors import UsageError
from endwell.runtime.signals import on_stop_signals

PATIENCE = 600.0


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


async def _next(queue: asyncio.Queue[int]) -> int:
    async with asyncio.timeout(PATIENCE):
        return await queue.get()


async def test_signals_are_counted_across_kinds(handlers: None) -> None:
    heard: asyncio.Queue[int] = asyncio.Queue()
    restore = on_stop_signals(asyncio.get_running_loop(), heard.put_nowait)
    try:
        signal.raise_signal(signal.SIGTERM)
        assert await _next(heard) == 1
        signal.raise_signal(signal.SIGINT)
        assert await _next(heard) == 2
        signal.raise_signal(signal.SIGTERM)
        assert await _next(heard) == 2
    finally:
        restore()


async def test_the_second_signal_is_heard_while_the_loop_is_blocked(handlers: None) -> None:
    heard: list[int] = []
    restore = on_stop_signals(asyncio.get_running_loop(), heard.append)
    try:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert heard == [2]  # without a turn of the loop in between
        await asyncio.sleep(0)
        assert heard == [2, 1]
    finally:
        restore()


async def test_a_second_signal_may_cancel_a_task_of_a_sleeping_loop(handlers: None) -> None:
    forever = asyncio.ensure_future(asyncio.Event().wait())
    heard = asyncio.Event()

    def stop(count: int) -> None:
        _do(heard.set if count == 1 else forever.cancel)

    restore = on_stop_signals(asyncio.get_running_loop(), stop)
    main = threading.main_thread().ident or 0
    try:
        signal.pthread_kill(main, signal.SIGTERM)
        await heard.wait()
        threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGTERM)).start()
        done, _ = await asyncio.wait([forever], timeout=PATIENCE)
        assert done == {forever}
    finally:
        restore()


def _do(action: Callable[[], object]) -> None:
    action()


def test_a_signal_after_the_loop_has_closed_is_harmless(handlers: None) -> None:
    loop = asyncio.new_event_loop()
    restore = on_stop_signals(loop, lambda _: None)
    loop.close()
    try:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        restore()


async def test_only_the_main_thread_can_handle_signals() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(UsageError, match="main thread"):
        await asyncio.to_thread(on_stop_signals, loop, lambda _: None)
