"""The runtime of a simulated process: virtual time, seeded ids, and event loops in place of threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

from endwell.model.moments import SECOND
from endwell.runtime.base import Attendant, Beside, Runtime
from endwell.runtime.ids import SeededIds
from endwell.runtime.threads import ThreadPool
from endwell.runtime.virtual.scheduler import Dice, VirtualLoop, VirtualProcess, VirtualScheduler
from endwell.runtime.virtual.thread import VirtualThread, wait_in_thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)

HESITATION: Final = 0.1
"""Share of `sleep(0)` calls that take virtual time."""
HESITATION_SECONDS: Final = 0.02
LATENCY_SECONDS: Final = 0.002


class VirtualClock:
    """The clocks of a simulated machine: its wall clock may be set, its monotonic clock only advances."""

    def __init__(self, scheduler: VirtualScheduler) -> None:
        self._universe = scheduler

    def now_us(self) -> int:
        return self._universe.now_us

    def monotonic(self) -> float:
        return self._universe.elapsed_us / SECOND


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualRuntime(Runtime):
    """Everything that waits or runs beside the caller does so in virtual time."""

    process: VirtualProcess
    dice: Dice
    is_alive_on_machine: Callable[[int], bool]
    threads: list[VirtualThread] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0 and self.dice.happens(HESITATION):
            seconds = self.dice.random() * HESITATION_SECONDS
        await asyncio.sleep(max(0.0, seconds))

    def block(self, seconds: float) -> None:
        """Let virtual time pass for all processes: they share one real thread."""
        self.process.scheduler.elapsed_us += round(seconds * SECOND)

    async def wait(self, event: asyncio.Event, timeout: float | None = None) -> bool:
        """Wait as asyncio would, with one timer and without cancelling."""
        if event.is_set() or timeout is None:
            return await event.wait()
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        event._waiters.append(waiter)
        timer = loop.call_later(timeout, _wake_waiter, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            event._waiters.remove(waiter)
        return event.is_set()

    def start_attendant(self, attend: Callable[[], bool], name: str) -> Attendant:
        return VirtualAttendant(self.process.new_loop(name), attend)

    def start_loop(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Beside:
        return VirtualLoopThread(self.process.new_loop(name), main)

    def give_way(self) -> None:
        """Do nothing: there is no other process."""

    def host_name(self) -> str:
        return self.process.host

    def process_id(self) -> int:
        return self.process.pid

    def is_alive(self, pid: int) -> bool:
        return self.is_alive_on_machine(pid)

    def process_mark(self) -> str:
        return ""

    def is_same_process(self, pid: int, mark: str) -> bool | None:
        """Whether it is alive: the numbers of simulated processes are never reused."""
        return self.is_alive_on_machine(pid)

    def has_children(self) -> bool:
        """Return False: simulated code starts no processes."""
        return False

    def lock_holder(self, path: Path, byte: int) -> int | None:
        """Return None: for the kernel all simulated processes are one."""
        return None

    async def in_thread(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a function in a thread that runs only while the scheduler waits."""
        await asyncio.sleep(self.dice.random() * LATENCY_SECONDS)
        thread = VirtualThread(asyncio.get_running_loop(), partial(fn, *args))
        self.threads.append(thread)
        try:
            result: T = await thread.run()
            return result
        finally:
            if thread.is_over:
                self.threads.remove(thread)

    def make_waiter(self) -> Callable[[Awaitable[Any]], Any]:
        return wait_in_thread

    def close(self) -> None:
        """End every thread and loop of the process."""
        for thread in self.threads:
            thread.close()
        for loop in self.process.loops:
            loop.forget()


def virtual_runtime(
    process: VirtualProcess, seed: str, is_alive_on_machine: Callable[[int], bool]
) -> VirtualRuntime:
    """Make the runtime of one process; its ids and dice follow from the seed."""
    clock = VirtualClock(process.scheduler)
    dice = Dice(f"{seed}/{process.name}/{process.pid}")
    return VirtualRuntime(
        clock=clock,
        ids=SeededIds(dice.getrandbits(64), clock),
        pool=ThreadPool(1),
        process=process,
        dice=dice,
        is_alive_on_machine=is_alive_on_machine,
    )


def outside_of_loops(run: Callable[[], T]) -> T:
    """Run the scheduler, even if the caller is a task of a real event loop."""
    loop = asyncio._get_running_loop()
    task = asyncio.current_task(loop) if loop is not None else None
    if loop is not None and task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        return run()
    finally:
        asyncio._set_running_loop(loop)
        if loop is not None and task is not None:
            asyncio.tasks._enter_task(loop, task)


def _wake_waiter(waiter: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class VirtualAttendant:
    """An attendant on a virtual event loop of its own."""

    def __init__(self, loop: VirtualLoop, attend: Callable[[], bool]) -> None:
        self._loop = loop
        self._attend = attend
        self._is_called = False
        self._is_done = False
        self._waiting: list[asyncio.Future[None]] = []

    def call(self) -> None:
        if not (self._is_called or self._is_done):
            self._is_called = True
            self._loop.call_soon(self._run)

    async def wait_ended(self) -> None:
        if not self._is_done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def _run(self) -> None:
        self._is_called = False
        try:
            self._is_done = not self._attend()
        except Exception:
            log.exception("%s failed", self._loop.name)
            self._is_done = True
        for future in self._waiting if self._is_done else ():
            future.get_loop().call_soon_threadsafe(_wake_waiter, future)


class VirtualLoopThread:
    """A coroutine on a virtual event loop of its own."""

    def __init__(self, loop: VirtualLoop, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop = loop
        self._task = loop.create_task(main(), name=loop.name)

    def call(self, fn: Callable[[], object]) -> None:
        self._loop.call_soon(fn)

    async def wait_ended(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._task.add_done_callback(lambda _: loop.call_soon_threadsafe(_wake_waiter, future))
        timer = loop.call_later(timeout, _wake_waiter, future)
        await future
        timer.cancel()
