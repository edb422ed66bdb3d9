"""Threads: a bounded pool of daemon threads for synchronous code, and a thread that works when it is called.

Unlike the standard executor, this pool does not delay the end of the process: a function that hangs costs
its thread, not the shutdown. Threads start when needed and end when idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 10.0
"""How long a pool thread without work stays."""


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread; a failure is logged under `name`."""

    def run() -> None:
        try:
            target()
        except Exception as error:
            log.exception("%s failed: %r", name, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class ThreadPool:
    """At most `limit` threads; further calls wait in order of arrival."""

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

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a function in a thread of the pool and return its result.

        Cancelling stops the waiting, not the function: it keeps its thread until it returns, and its result
        is discarded. A function that has not started yet never starts.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        call = partial(contextvars.copy_context().run, fn, *args)
        self.submit(partial(settle_future, loop, future, call))
        return await future

    def submit(self, call: Callable[[], None]) -> None:
        """Have `call` run in a thread; it must not raise."""
        with self._changed:
            self._calls.append(call)
            if self._idle >= len(self._calls) or self._threads >= self._limit:
                self._changed.notify()
                return
            try:
                self._start_thread()
            except RuntimeError:  # the system allows no further thread
                self._calls.remove(call)
                raise

    def _start_thread(self) -> None:
        name = f"{self._name}-{self._started}"
        threading.Thread(target=self._run_calls, name=name, daemon=True).start()
        self._started += 1
        self._threads += 1

    def _run_calls(self) -> None:
        while (call := self._next_call()) is not None:
            call()
            # Otherwise the last call, and all it refers to, would live until the next one.
            del call

    def _next_call(self) -> Callable[[], None] | None:
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
    """A thread that runs `attend` whenever it is called, until `attend` returns False."""

    def __init__(self, pool: ThreadPool, attend: Callable[[], bool], name: str) -> None:
        self._pool = pool
        self._attend = attend
        self._called = threading.Event()
        self._thread = start_thread(self._run, name)

    def call(self) -> None:
        self._called.set()

    async def wait_ended(self) -> None:
        await self._pool.run(self._thread.join)

    def _run(self) -> None:
        has_more = True
        while has_more:
            self._called.wait()
            self._called.clear()
            has_more = self._attend()


def settle_future(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], call: Callable[[], Any]
) -> None:
    """Run `call` in this thread and give its result to `future`, unless the future was cancelled."""
    if future.cancelled():
        return
    try:
        settle = partial(_set_result, future, call())
    except StopIteration as error:
        # A future refuses StopIteration, and its awaiter would wait for ever.
        renamed = RuntimeError("the function raised StopIteration")
        renamed.__cause__ = error
        settle = partial(_set_error, future, renamed)
    except BaseException as error:
        settle = partial(_set_error, future, error)
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(settle)


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_error(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
