"""Counts the work that an effect's function starts as part of its call.

Python has no single place where work begins, so each entry point is wrapped once. On an event loop that
makes effect calls: asyncio tasks, subprocesses, and executors given to `loop.run_in_executor`. In the whole
process: `submit` of the standard executors, threads that are not daemons, callbacks for another thread's
loop, and `anyio.to_thread.run_sync`. What followed threads start is followed too. Not seen are daemon
threads, processes that are not started by the event loop, tasks made by `asyncio.Task(...)`, what tasks with
a context of their own start, and callbacks and timers of the loop: clients keep timers for long.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import Context
from functools import partial, wraps
from typing import Any, Final

from endwell.runtime.running_calls import CURRENT_CALL, RunningCall
from endwell.runtime.thread_call import ThreadCall

_FOLLOWED: Final = "_endwell_follows_calls"
_INHERITS: Final = "_endwell_inherits_daemon"
_ANYIO_BACKEND: Final = "anyio._backends._asyncio"
_installing = threading.Lock()


def follow_work(loop: asyncio.AbstractEventLoop) -> None:
    """Count work that is started on this loop, and in this process, as part of the current call."""
    if _mark_followed(loop):
        _follow_loop(loop)
    if not getattr(threading.Thread, _FOLLOWED, False):
        with _installing:
            if _mark_followed(threading.Thread):
                _follow_process()


def _mark_followed(place: object) -> bool:
    """Mark a place whose entry points are wrapped; False if it was marked before."""
    if getattr(place, _FOLLOWED, False):
        return False
    setattr(place, _FOLLOWED, True)
    return True


def _follow_loop(loop: asyncio.AbstractEventLoop) -> None:
    wrappers: dict[str, Callable[..., Any]] = {
        "create_task": partial(_create_task, loop.create_task),
        "run_in_executor": partial(_run_in_executor, loop, loop.run_in_executor),
        "subprocess_exec": partial(_start_process, loop.subprocess_exec),
        "subprocess_shell": partial(_start_process, loop.subprocess_shell),
    }
    for name, wrapper in wrappers.items():
        setattr(loop, name, wrapper)


def _create_task(
    create: Callable[..., Any], coro: Any, *, context: Context | None = None, **named: Any
) -> Any:
    task = create(coro, **named) if context is None else create(coro, context=context, **named)
    call = CURRENT_CALL.get()
    if call is None and context is not None:
        call = context.get(CURRENT_CALL)
    if call is not None:
        call.add(lambda: not task.done())
    return task


def _run_in_executor(
    loop: asyncio.AbstractEventLoop,
    run: Callable[..., Any],
    executor: Executor | None,
    function: Callable[..., Any],
    *args: Any,
) -> Any:
    """Follow an executor of any kind; the default executor's `submit` is followed already."""
    call = CURRENT_CALL.get()
    if call is None or executor is None:
        return run(executor, function, *args)
    future = executor.submit(function, *args)
    call.add(lambda: not future.done())
    return asyncio.wrap_future(future, loop=loop)


async def _start_process(start: Callable[..., Any], *args: Any, **named: Any) -> Any:
    call = CURRENT_CALL.get()
    transport, protocol = await start(*args, **named)
    if call is not None:
        call.add(lambda: transport.get_returncode() is None)
    return transport, protocol


def _follow_process() -> None:
    for kind in (ThreadPoolExecutor, ProcessPoolExecutor):
        kind.submit = _followed_submit(kind.submit)  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = _with_call(ThreadPoolExecutor.submit)  # type: ignore[method-assign]
    threading.Thread.__init__ = _followed_init(threading.Thread.__init__)  # type: ignore[method-assign]
    threading.Thread.start = _followed_start(threading.Thread.start)  # type: ignore[method-assign]
    base = asyncio.BaseEventLoop
    base.call_soon_threadsafe = _followed_handover(base.call_soon_threadsafe)  # type: ignore[assignment, method-assign]
    if importlib.util.find_spec("anyio") is not None:
        backend = importlib.import_module(_ANYIO_BACKEND).AsyncIOBackend
        backend.run_sync_in_worker_thread = _followed_anyio(backend.run_sync_in_worker_thread)


def _followed_submit(submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @wraps(submit)
    def submit_followed(self: Executor, *args: Any, **named: Any) -> Future[Any]:
        call = CURRENT_CALL.get()
        if call is None:
            return submit(self, *args, **named)
        token = CURRENT_CALL.set(None)  # the executor's own threads are no part of the call
        try:
            future = submit(self, *args, **named)
        finally:
            CURRENT_CALL.reset(token)
        call.add(lambda: not future.done())
        return future

    return submit_followed


def _with_call(submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    """Follow what the executor's threads start: they do not have the caller's context."""

    @wraps(submit)
    def submit_with_call(
        self: Executor, function: Callable[..., Any], /, *args: Any, **named: Any
    ) -> Future[Any]:
        call = CURRENT_CALL.get()
        if call is None:
            return submit(self, function, *args, **named)
        return submit(self, partial(_run_inside, call, function), *args, **named)

    return submit_with_call


def _followed_init(init: Callable[..., None]) -> Callable[..., None]:
    """Follow threads that only inherit being daemons from the thread of a `def` effect."""

    @wraps(init)
    def init_followed(self: threading.Thread, *args: Any, daemon: bool | None = None, **named: Any) -> None:
        inherits = daemon is None and CURRENT_CALL.get() is not None and threading.current_thread().daemon
        init(self, *args, daemon=False if inherits else daemon, **named)
        if inherits:
            setattr(self, _INHERITS, True)

    return init_followed


def _followed_start(start: Callable[..., None]) -> Callable[..., None]:
    @wraps(start)
    def start_followed(self: threading.Thread) -> None:
        call = CURRENT_CALL.get()
        if call is None or self.daemon:  # a daemon thread is a service that outlives the work
            start(self)
            return
        self.run = partial(_run_inside, call, self.run)  # type: ignore[method-assign]
        if getattr(self, _INHERITS, False):
            self.daemon = True
        start(self)
        call.add(self.is_alive)

    return start_followed


def _followed_handover(hand_over: Callable[..., asyncio.Handle]) -> Callable[..., asyncio.Handle]:
    """Follow a callback for another loop until it has run there, and what it starts there."""

    @wraps(hand_over)
    def call_followed(
        self: asyncio.BaseEventLoop, callback: Callable[..., Any], *args: Any, **named: Any
    ) -> asyncio.Handle:
        call = CURRENT_CALL.get()
        if call is None:
            return hand_over(self, callback, *args, **named)
        if _mark_followed(self):
            _follow_loop(self)
        handed = ThreadCall(partial(callback, *args))
        handle = hand_over(self, handed.run, **named)
        call.add(lambda: handed.is_open and not handle.cancelled() and not self.is_closed())
        return handle

    return call_followed


def _followed_anyio(run_sync: Callable[..., Any]) -> Callable[..., Any]:
    """Follow the function itself: AnyIO's threads wait for further work when it has ended."""

    @wraps(run_sync)
    async def run_followed(
        function: Callable[..., Any], args: tuple[Any, ...], *rest: Any, **named: Any
    ) -> Any:
        call = CURRENT_CALL.get()
        if call is None:
            return await run_sync(function, args, *rest, **named)
        thread = ThreadCall(partial(_run_inside, call, function, *args))
        call.add(lambda: thread.is_open)
        token = CURRENT_CALL.set(None)  # nor are AnyIO's threads
        try:
            return await run_sync(thread.run, (), *rest, **named)
        finally:
            CURRENT_CALL.reset(token)
            thread.stop_waiting()

    return run_followed


def _run_inside(call: RunningCall, function: Callable[..., Any], *args: Any) -> Any:
    token = CURRENT_CALL.set(call)
    try:
        return function(*args)
    finally:
        CURRENT_CALL.reset(token)
