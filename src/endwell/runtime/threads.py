"""A bounded pool of daemon threads for synchronous code.

Unlike the standard executor it never holds up the end of the process: a function that hangs costs its
thread, not the shutdown. Threads start when needed and leave when idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from endwell.runtime.base import Runtime

IDLE_SECONDS = 10.0
"""How long a thread without work stays."""


class ThreadPool:
    """At most `limit` threads; calls beyond that wait their turn, first come first served."""

    def __init__(self, limit: int, name: str = "endwell-sync") -> None:
        if limit < 1:
            raise ValueError("a thread pool needs at least one thread")
        self._limit = limit
        self._name = name
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._started = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Have `call` run in a thread; it must not raise."""
        with self._changed:
            self._calls.append(call)
            if self._idle >= len(self._calls) or self._threads >= self._limit:
                self._changed.notify()
                return
            try:
                self._start_thread()
            except RuntimeError:  # the system has no more threads for us
                self._calls.remove(call)
                raise

    def _start_thread(self) -> None:
        name = f"{self._name}-{self._started}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._started += 1
        self._threads += 1

    def _serve(self) -> None:
        while (call := self._take()) is not None:
            call()
            # Otherwise the last call, and all it refers to, would live until the next one.
            del call

    def _take(self) -> Callable[[], None] | None:
        with self._changed:
            if not self._calls:
                self._idle += 1
                self._changed.wait_for(lambda: bool(self._calls), timeout=IDLE_SECONDS)
                self._idle -= 1
            if self._calls:
                return self._calls.popleft()
            self._threads -= 1
            return None


class ThreadAttendant:
    """A thread that waits to be called; it ends when `attend` returns False."""

    def __init__(self, runtime: Runtime, attend: Callable[[], bool], name: str) -> None:
        self._runtime = runtime
        self._attend = attend
        self._flag = runtime.flag()
        self._thread = runtime.thread(self._run, name)

    def call(self) -> None:
        self._flag.set()

    async def ended(self) -> None:
        await self._runtime.in_thread(self._thread.join)

    def _run(self) -> None:
        is_done = False
        while not is_done:
            self._flag.wait()
            self._flag.clear()
            is_done = not self._attend()


def answer(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
    """Run `call` here and settle `future` on its loop; nobody waiting any more is fine."""
    if future.cancelled():
        return
    try:
        settle = partial(_succeed, future, call())
    except StopIteration as error:
        # A future refuses StopIteration, and whoever awaits it would wait for ever.
        settle = partial(_fail, future, _renamed(error))
    except BaseException as error:
        settle = partial(_fail, future, error)
    with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
        loop.call_soon_threadsafe(settle)


def _renamed(error: StopIteration) -> RuntimeError:
    renamed = RuntimeError("the function raised StopIteration")
    renamed.__cause__ = error
    return renamed


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
