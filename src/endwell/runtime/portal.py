"""The portal: an event loop in a thread of its own, which synchronous callers use.

It also works under a running event loop, as in a notebook. Every call returns: with its result, at its
timeout, on Ctrl-C, or when the portal is closed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Self, TypeVar, TypeVarTuple

from endwell.errors import UsageError
from endwell.runtime.loops import new_loop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""How long `close` waits for running calls to end after their cancellation."""

# A signal that comes just before a thread blocks does not wake it; it is noticed after this time.
_LOOK_SECONDS = 1.0


class Portal:
    """An event loop in a daemon thread. `call` runs a coroutine there and blocks until it has ended."""

    def __init__(self, *, name: str = "endwell-portal") -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._ready: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._loop = self._ready.result()

    def call(
        self, fn: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts, timeout: float | None = None
    ) -> T:
        """Run `fn(*args)` on the portal's loop and return its result; TimeoutError past `timeout`."""
        # Made before anything is submitted: Ctrl-C at any later point has something to cancel.
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            self._submit(
                partial(_begin, self._loop, answer, lambda: _call_within(timeout, partial(fn, *args)))
            )
            return _wait_for(answer)
        except concurrent.futures.CancelledError:
            if self._closed:
                raise UsageError("The portal was closed while the call was running.") from None
            raise
        except KeyboardInterrupt:
            answer.cancel()
            raise

    def close(self) -> None:
        """Cancel what is running and end the thread. Closing twice is fine."""
        self.refuse_own_thread("close")
        if self._pid != os.getpid():  # a forked child has this object without its thread
            return
        with self._lock:
            already, self._closed = self._closed, True
        if not already:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.warning("%s: a call ignored its cancellation; its thread is left behind", self._thread.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, begin: Callable[[], None]) -> None:
        self.refuse_own_thread("call")
        if self._pid != os.getpid():
            raise UsageError("This process was forked; make a new portal in it.")
        # Under the lock, so that a call is either refused or seen, and cancelled, by `close`.
        with self._lock:
            if self._closed:
                raise UsageError("The portal is closed.")
            self._loop.call_soon_threadsafe(begin)

    def refuse_own_thread(self, verb: str) -> None:
        """Raise UsageError on the portal's own thread, where blocking would stop every call."""
        if threading.current_thread() is self._thread:
            raise UsageError(
                f"Portal.{verb} was used inside the portal's own event loop, where it would wait for itself.",
                hint="await the asynchronous form instead",
            )

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                self._ready.set_result(runner.get_loop())
                self._serve(runner)
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    def _serve(self, runner: asyncio.Runner) -> None:
        try:
            runner.run(self._wait_for_stop())
        finally:
            # Reached without `close` when a call raised SystemExit, which ends a loop.
            with self._lock:
                self._closed = True
            runner.run(_let_submitted_calls_begin())

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()


async def _let_submitted_calls_begin() -> None:
    # Only a task that has begun to exist can be cancelled, and so answer its caller.
    await asyncio.sleep(0)


def _wait_for(answer: concurrent.futures.Future[T]) -> T:
    while True:
        try:
            return answer.result(_LOOK_SECONDS)
        except TimeoutError:
            if answer.done():  # then it may be the call's own
                return answer.result()


def _begin(
    loop: asyncio.AbstractEventLoop,
    answer: concurrent.futures.Future[T],
    make: Callable[[], Coroutine[Any, Any, T]],
) -> None:
    """Start a call on the loop, and connect it with the answer that its caller waits for."""
    if answer.cancelled():
        return
    task = loop.create_task(make())
    task.add_done_callback(partial(_pass_on, answer))
    answer.add_done_callback(partial(_cancel_with, loop, task))


def _pass_on(answer: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        answer.cancel()
        return
    error = task.exception()
    with contextlib.suppress(concurrent.futures.InvalidStateError):  # the caller no longer waits
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())


def _cancel_with(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[T], answer: concurrent.futures.Future[T]
) -> None:
    if answer.cancelled():
        with contextlib.suppress(RuntimeError):  # the loop has closed, and cancelled it
            loop.call_soon_threadsafe(task.cancel)


async def _call_within(timeout: float | None, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # Inside the loop, so that a call that runs out of time has been cleaned up when it raises; and
    # called only here, so that a call with wrong arguments fails to its caller.
    async with asyncio.timeout(timeout):
        return await call()
