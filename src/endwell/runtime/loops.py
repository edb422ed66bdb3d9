"""Which event loop to run on: uvloop where it is installed, asyncio's own otherwise; and one in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from endwell.runtime.base import Runtime


def new_loop(*, fast: bool = True) -> asyncio.AbstractEventLoop:
    """A new event loop; `fast=False` stays with asyncio's even if uvloop is there."""
    if fast:
        try:
            loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
            return loop
        except ImportError:
            pass
    return asyncio.new_event_loop()


def later(loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], object]) -> None:
    """Have a loop call something after a while; from any thread."""
    loop.call_soon_threadsafe(lambda: loop.call_later(seconds, call))


class LoopThread:
    """One coroutine on an event loop of its own, in a thread of its own."""

    def __init__(self, runtime: Runtime, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._runtime = runtime
        self._main = main
        self._loop = new_loop()
        self._thread = runtime.thread(self._run, name)

    def call(self, fn: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # its thread has ended
            self._loop.call_soon_threadsafe(fn)

    async def ended(self, timeout: float) -> None:
        await self._runtime.in_thread(self._thread.join, timeout)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())
