"""Virtual threads: they run only while the scheduler waits, so that the order of events is fixed.

They are for functions without `await` that block, in their thread, until an event loop has done something.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from endwell.runtime.threads import settle_future

_own = threading.local()


class SchedulerClosed(BaseException):
    """The scheduler of this thread has been closed; the thread ends."""


class VirtualThread:
    """One function in a thread of its own. Two semaphores let either the thread or the scheduler run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
        self._loop = loop
        self._call = call
        self._thread_may_run = threading.Semaphore(0)
        self._scheduler_may_run = threading.Semaphore(0)
        self._result: tuple[Any, BaseException | None] = (None, None)
        self._is_closed = False
        self.is_over = False

    async def run(self) -> Any:
        """Run the function and return its result."""
        future: asyncio.Future[Any] = self._loop.create_future()
        body = partial(contextvars.copy_context().run, self._call)
        threading.Thread(target=self._in_thread, args=(future, body), daemon=True).start()
        self._loop.call_soon(self._let_thread_run)
        return await future

    def close(self) -> None:
        """End a thread that would otherwise wait for ever."""
        if not self.is_over:
            self._is_closed = True
            self._let_thread_run()

    def _let_thread_run(self) -> None:
        self._thread_may_run.release()
        self._scheduler_may_run.acquire()

    def _in_thread(self, future: asyncio.Future[Any], body: Callable[[], Any]) -> None:
        _own.thread = self
        self._thread_may_run.acquire()
        try:
            if not self._is_closed:
                settle_future(self._loop, future, body)
        finally:
            self.is_over = True
            self._scheduler_may_run.release()

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Block this thread until the event loop has awaited something; return its result."""
        self._loop.call_soon(self._begin, awaitable)
        self._scheduler_may_run.release()
        self._thread_may_run.acquire()
        if self._is_closed:
            raise SchedulerClosed
        value, error = self._result
        if error is not None:
            raise error
        return value

    def _begin(self, awaitable: Awaitable[Any]) -> None:
        self._loop.create_task(_await(awaitable)).add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._result = (None, asyncio.CancelledError())
        else:
            error = task.exception()
            self._result = (None, error) if error is not None else (task.result(), None)
        self._let_thread_run()


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def wait_in_thread(awaitable: Awaitable[Any]) -> Any:
    """Block the running virtual thread until its event loop has awaited something; return its result."""
    thread: VirtualThread = _own.thread
    return thread.wait(awaitable)
