"""Threads for the synchronous functions of steps.

They are not those that agents run in, so a step never waits for a thread that its own agent holds. A function
that is no longer waited for cannot be ended from outside; until it returns, its turn keeps its slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from endwell.runtime.base import Runtime
from endwell.runtime.thread_call import ThreadCall
from endwell.runtime.threads import ThreadPool


def with_step_threads(runtime: Runtime) -> Runtime:
    """The same runtime with as many threads as there are steps at once."""
    return replace(runtime, pool=ThreadPool(sys.maxsize, "endwell-step"))


class TurnThreads:
    """The threads of one turn. `on_free` is called on the event loop when a late one has ended."""

    def __init__(self, runtime: Runtime, on_free: Callable[[], None]) -> None:
        self._runtime = runtime
        self._on_free = on_free
        self._late: set[ThreadCall] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a function is still running that is no longer waited for."""
        return bool(self._late)

    async def run(self, call: ThreadCall) -> Any:
        """What the function returns; leaving the wait does not end it."""
        loop = asyncio.get_running_loop()
        try:
            return await self._runtime.in_thread(self._run_in_thread, loop, call)
        finally:
            call.stop_waiting()
            if call.is_running:
                self._late.add(call)

    def _run_in_thread(self, loop: asyncio.AbstractEventLoop, call: ThreadCall) -> Any:
        try:
            return call.run()
        finally:
            if call.is_left:
                with contextlib.suppress(RuntimeError):  # the loop has closed
                    loop.call_soon_threadsafe(self._on_late_end, call)

    def _on_late_end(self, call: ThreadCall) -> None:
        if call in self._late:
            self._late.discard(call)
            self._on_free()
