"""Threads that pass a baton: exactly one of them and its universe runs, so the order of events stays fixed.

For functions that are written without `await` and wait, in their thread, for what an event loop does.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from endwell.runtime.threads import answer

_own = threading.local()


class Gone(BaseException):
    """The universe that this thread lived in has ended."""


class Baton:
    """One function in a thread of its own, which runs only while the universe waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
        self._loop = loop
        self._call = call
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._result: tuple[Any, BaseException | None] = (None, None)
        self._is_gone = False
        self.is_over = False

    async def run(self) -> Any:
        """What the function returns."""
        future: asyncio.Future[Any] = self._loop.create_future()
        body = partial(contextvars.copy_context().run, self._call)
        threading.Thread(target=self._in_thread, args=(future, body), daemon=True).start()
        self._loop.call_soon(self._hand_over)
        return await future

    def leave(self) -> None:
        """End a thread that would wait for ever."""
        if not self.is_over:
            self._is_gone = True
            self._hand_over()

    def _hand_over(self) -> None:
        self._go.release()
        self._back.acquire()

    def _in_thread(self, future: asyncio.Future[Any], body: Callable[[], Any]) -> None:
        _own.baton = self
        self._go.acquire()
        try:
            if not self._is_gone:
                answer(self._loop, future, body)
        finally:
            self.is_over = True
            self._back.release()

    def wait(self, thing: Awaitable[Any]) -> Any:
        """In the thread: have the event loop await something, and stand still until it has."""
        self._loop.call_soon(self._begin, thing)
        self._back.release()
        self._go.acquire()
        if self._is_gone:
            raise Gone
        value, error = self._result
        if error is not None:
            raise error
        return value

    def _begin(self, thing: Awaitable[Any]) -> None:
        self._loop.create_task(_awaited(thing)).add_done_callback(self._resume)

    def _resume(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._result = (None, asyncio.CancelledError())
        else:
            error = task.exception()
            self._result = (None, error) if error is not None else (task.result(), None)
        self._hand_over()


async def _awaited(thing: Awaitable[Any]) -> Any:
    return await thing


def wait_here(thing: Awaitable[Any]) -> Any:
    """In a thread with a baton: what the event loop makes of it."""
    baton: Baton = _own.baton
    return baton.wait(thing)
