"""`Runtime`: one value that carries the clock, the ids, and everything that waits or runs beside the caller.

Code above this room takes all of that from its `Runtime`; the simulator passes a subclass that keeps it in
one thread and in virtual time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, TypeVarTuple

from endwell.runtime import processes
from endwell.runtime.clock import Clock, SystemClock
from endwell.runtime.ids import Ids, SystemIds
from endwell.runtime.loops import LoopThread
from endwell.runtime.threads import ThreadAttendant, ThreadPool

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Deadline = asyncio.Timeout
Lock = threading.Lock

log = logging.getLogger(__name__)


class Attendant(Protocol):
    """Runs a function on a thread of its own whenever it is called."""

    def call(self) -> None:
        """Run the function soon; may be called from any thread."""

    async def wait_ended(self) -> None:
        """Wait until the function has returned False: it runs no more."""


class Beside(Protocol):
    """A coroutine on an event loop of its own, which no other loop can block."""

    def call(self, fn: Callable[[], object]) -> None:
        """Have that loop call a function; does nothing when the loop has ended."""

    async def wait_ended(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""


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
        """Use the machine's own time and ids, and at most `threads` threads for synchronous code."""
        clock = clock or SystemClock()
        return cls(clock=clock, ids=ids or SystemIds(clock), pool=ThreadPool(threads))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds if seconds > 0 else 0)

    def block(self, seconds: float) -> None:
        """Hold up the calling thread; never use it on an event loop."""
        time.sleep(seconds)

    def schedule(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Have the current event loop make a short call after a delay."""
        return asyncio.get_running_loop().call_later(seconds, call)

    def timeout(self, seconds: float | None) -> Deadline:
        """Cancel the block and raise TimeoutError when it takes longer; None is no limit."""
        return asyncio.timeout(seconds)

    async def wait(self, event: asyncio.Event, timeout: float | None = None) -> bool:
        """Wait for the event; False when the timeout came first."""
        try:
            async with self.timeout(timeout):
                await event.wait()
        except TimeoutError:
            pass
        return event.is_set()

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside the caller, and log its failure under `name`."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._spawned.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def start(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Like `spawn`, at a third of the cost, for a caller that keeps the task and handles its failure."""
        return asyncio.get_running_loop().create_task(coro, name=name)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._spawned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %r", task.get_name(), error, exc_info=error)

    def start_attendant(self, attend: Callable[[], bool], name: str) -> Attendant:
        """Start a thread that runs `attend` whenever it is called, until `attend` returns False."""
        return ThreadAttendant(self.pool, attend, name)

    def start_loop(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Beside:
        """Run a coroutine on an event loop of its own, in a thread of its own."""
        return LoopThread(self.pool, main, name)

    def give_way(self) -> None:
        """Let other processes have the processor."""
        processes.give_way()

    def host_name(self) -> str:
        return processes.host_name()

    def process_id(self) -> int:
        return processes.process_id()

    def is_alive(self, pid: int) -> bool:
        """Whether a process of this machine runs."""
        return processes.pid_alive(pid)

    def process_mark(self) -> str:
        """Return a text that tells this process from an earlier or later one with the same number."""
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
        """Run a synchronous function in the thread pool; cancelling does not stop it (`ThreadPool.run`)."""
        return await self.pool.run(fn, *args)

    def make_waiter(self) -> Callable[[Awaitable[Any]], Any]:
        """Make a function that blocks its thread until the current event loop has awaited something."""
        loop = asyncio.get_running_loop()

        async def awaited(thing: Awaitable[Any]) -> Any:
            return await thing

        return lambda thing: asyncio.run_coroutine_threadsafe(awaited(thing), loop).result()

    def new_lock(self) -> Lock:
        """Make a lock for threads."""
        return threading.Lock()
