"""One value that carries clock, ids and everything that waits or runs beside the caller.

Whoever holds a `Runtime` needs nothing else from the machine; a simulator passes a subclass that keeps
all of it in one thread and one virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, TypeVarTuple

from endwell.runtime import processes
from endwell.runtime.clock import Clock, SystemClock
from endwell.runtime.ids import Ids, SystemIds
from endwell.runtime.loops import LoopThread
from endwell.runtime.threads import ThreadAttendant, ThreadPool, answer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)


class RunningThread(Protocol):
    """A thread that has been started."""

    @property
    def name(self) -> str: ...

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


class Attendant(Protocol):
    """Somebody of one's own who does, when called, what would hold up the caller."""

    def call(self) -> None:
        """There is something to do. From any thread."""

    async def ended(self) -> None:
        """Wait until it has said that it is done for good."""


class Beside(Protocol):
    """A coroutine that runs on an event loop of its own, not held up by anybody else's."""

    def call(self, fn: Callable[[], object]) -> None:
        """Have that loop call a function; nothing happens when it has ended."""

    async def ended(self, timeout: float) -> None:
        """Wait for its end, at most so many seconds."""


class Lock(AbstractContextManager[bool], Protocol):
    """Held by one thread at a time."""

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...


class Flag(Protocol):
    """Raised in one thread, waited for in another."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Timer(Protocol):
    """A call that will be made later, unless it is cancelled."""

    def cancel(self) -> None: ...


class Deadline(AbstractAsyncContextManager["Deadline"], Protocol):
    """A block that may take only so long."""

    def reschedule(self, when: float | None, /) -> None:
        """Give it another end, by the event loop's clock; 0 ends it now."""

    def expired(self) -> bool:
        """Whether its time was up, also when the block went on nevertheless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """Clock, ids, sleeping, spawning and threads, all replaceable."""

    clock: Clock
    ids: Ids
    pool: ThreadPool
    # The event loop itself holds its tasks only weakly; a spawned task must not vanish.
    _spawned: set[asyncio.Task[Any]] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def system(cls, *, clock: Clock | None = None, ids: Ids | None = None, threads: int = 32) -> Self:
        """The real thing; at most `threads` synchronous functions at once."""
        clock = clock or SystemClock()
        return cls(clock=clock, ids=ids or SystemIds(clock), pool=ThreadPool(threads))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds if seconds > 0 else 0)

    def block(self, seconds: float) -> None:
        """Hold up the calling thread; never to be used on an event loop."""
        time.sleep(seconds)

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Have the current event loop make a short call after so many seconds."""
        return asyncio.get_running_loop().call_later(seconds, call)

    def timeout(self, seconds: float | None) -> Deadline:
        """Cancel the block and raise TimeoutError when it takes longer; None is no limit."""
        return asyncio.timeout(seconds)

    async def wait(self, event: asyncio.Event, timeout: float | None = None) -> bool:
        """Wait for the event; False when the time was up first."""
        try:
            async with self.timeout(timeout):
                await event.wait()
        except TimeoutError:
            pass
        return event.is_set()

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run beside the caller; a failure is logged under `name` even if nobody awaits the task."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._spawned.add(task)
        task.add_done_callback(self._ended)
        return task

    def start(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Like `spawn`, for a caller that keeps the task and sees to its failures: a third of the cost."""
        return asyncio.get_running_loop().create_task(coro, name=name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._spawned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %r", task.get_name(), error, exc_info=error)

    def thread(self, target: Callable[[], object], name: str) -> RunningThread:
        """Start a daemon thread; a failure is logged under `name`."""
        thread = threading.Thread(target=_logged(target, name), name=name, daemon=True)
        thread.start()
        return thread

    def attendant(self, attend: Callable[[], bool], name: str) -> Attendant:
        """A thread that calls `attend` whenever it is called, until that returns False."""
        return ThreadAttendant(self, attend, name)

    def beside(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Beside:
        """Run a coroutine on an event loop of its own, in a thread of its own."""
        return LoopThread(self, main, name)

    def give_way(self) -> None:
        """For whoever has nothing to do but wait: let others have the processor."""
        processes.give_way()

    def host(self) -> str:
        """The machine that this process runs on."""
        return processes.host_name()

    def pid(self) -> int:
        """This process, among those of its machine."""
        return processes.process_id()

    def is_alive(self, pid: int) -> bool:
        """Whether a process of this machine runs."""
        return processes.pid_alive(pid)

    def process_mark(self) -> str:
        """What tells this process from another one that has its number before or after it."""
        return processes.process_mark(processes.process_id()) or ""

    def is_same_process(self, pid: int, mark: str) -> bool | None:
        """Whether the process with this number and mark still runs here; None if that cannot be known."""
        return processes.is_same_process(pid, mark)

    def has_children(self) -> bool:
        """Whether this process has child processes, which may outlive it."""
        return processes.has_children()

    def lock_holder(self, path: Path, byte: int) -> int | None:
        """The process that holds a write lock on one byte of a file; None if none does, or it is unknown."""
        return processes.lock_holder(path, byte)

    async def in_thread(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a synchronous function in the bounded pool.

        Cancelling stops the waiting, not the function: it keeps its thread until it returns, and
        what it then returns is discarded. One that has not started yet never will.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        call = partial(contextvars.copy_context().run, fn, *args)
        self.pool.submit(partial(answer, loop, future, call))
        return await future

    def waiter(self) -> Callable[[Awaitable[Any]], Any]:
        """For code in a thread: have the current event loop await something, and block until it has."""
        loop = asyncio.get_running_loop()

        async def awaited(thing: Awaitable[Any]) -> Any:
            return await thing

        return lambda thing: asyncio.run_coroutine_threadsafe(awaited(thing), loop).result()

    def lock(self) -> Lock:
        """Mutual exclusion between threads."""
        return threading.Lock()

    def flag(self) -> Flag:
        """A signal between threads (within one event loop, `asyncio.Event` and `wait` do)."""
        return threading.Event()


def _logged(target: Callable[[], object], name: str) -> Callable[[], None]:
    def run() -> None:
        try:
            target()
        except Exception as error:
            log.exception("%s failed: %r", name, error)

    return run
