"""Stop signals: SIGTERM and SIGINT ask a process to stop, a second one ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType

from endwell.errors import UsageError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def on_stop_signals(loop: asyncio.AbstractEventLoop, callback: Callable[[int], None]) -> Callable[[], None]:
    """Call `callback(1)` at the first stop signal and `callback(2)` at every later one.

    The first call is made by the loop. Later ones run inside the signal handler, so that they work while an
    agent blocks the loop; there the callback may end the process or cancel a task. Returns a function that
    restores the previous handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("Stop signals can be handled in the main thread only.")
    seen = 0

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            _call_soon(loop, lambda: callback(1))
            return
        callback(2)
        _call_soon(
            loop, lambda: None
        )  # wakes a loop that sleeps in the kernel, so that it sees a cancelled task

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed
        loop.call_soon_threadsafe(callback)
