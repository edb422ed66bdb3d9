"""Event loops: uvloop where it is installed, otherwise asyncio's own; and an event loop in a thread.

`ENDWELL_EVENT_LOOP=asyncio` chooses Python's own loop although uvloop is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from endwell.errors import UsageError
from endwell.runtime.threads import ThreadPool, start_thread

VARIABLE: Final = "ENDWELL_EVENT_LOOP"


def new_loop() -> asyncio.AbstractEventLoop:
    """A new event loop."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "asyncio", "uvloop"):
        raise UsageError(f"{VARIABLE} is {wanted!r}", hint="asyncio, uvloop, or leave it unset")
    if wanted != "asyncio":
        try:
            loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
            return loop
        except ImportError:
            if wanted:
                why = f"{VARIABLE} asks for uvloop, which is not installed"
                raise UsageError(why, hint='pip install "endwell[fast]"') from None
    return asyncio.new_event_loop()


def name_of_loop() -> str:
    """Name the package whose event loop `new_loop` makes: "uvloop" or "asyncio"."""
    loop = new_loop()
    loop.close()
    return type(loop).__module__.partition(".")[0]


def call_later(loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], object]) -> None:
    """Have a loop make a call after a delay; from any thread."""
    loop.call_soon_threadsafe(lambda: loop.call_later(seconds, call))


class LoopThread:
    """One coroutine on an event loop of its own, in a thread of its own."""

    def __init__(self, pool: ThreadPool, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._pool = pool
        self._main = main
        self._loop = new_loop()
        self._thread = start_thread(self._run, name)

    def call(self, fn: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the thread has ended
            self._loop.call_soon_threadsafe(fn)

    async def wait_ended(self, timeout: float) -> None:
        await self._pool.run(self._thread.join, timeout)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())
