"""The runtime of a process in a universe: virtual time, seeded ids, threads that are only further loops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

from endwell.runtime.base import Attendant, Beside, RunningThread, Runtime
from endwell.runtime.baton import Baton, wait_here
from endwell.runtime.clock import MICROSECONDS
from endwell.runtime.ids import SeededIds
from endwell.runtime.threads import ThreadPool
from endwell.runtime.universe import Dice, Universe, VirtualLoop, VirtualProcess

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)

HESITATION: Final = 0.1
"""How often a moment in which others may run takes real time."""
HESITATION_SECONDS: Final = 0.02
LATENCY_SECONDS: Final = 0.002


class VirtualClock:
    """What the clocks of one machine show: its wall clock may be corrected, the other one only goes on."""

    def __init__(self, universe: Universe) -> None:
        self._universe = universe

    def now_us(self) -> int:
        return self._universe.now_us

    def monotonic(self) -> float:
        return self._universe.elapsed_us / MICROSECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualRuntime(Runtime):
    """Everything that waits or runs beside, waits and runs in its process's universe."""

    process: VirtualProcess
    dice: Dice
    is_alive_there: Callable[[int], bool]
    batons: list[Baton] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0 and self.dice.happens(HESITATION):
            seconds = self.dice.random() * HESITATION_SECONDS
        await asyncio.sleep(max(0.0, seconds))

    def block(self, seconds: float) -> None:
        """Everybody is held up: there is one thread only."""
        self.process.universe.elapsed_us += round(seconds * MICROSECONDS)

    async def wait(self, event: asyncio.Event, timeout: float | None = None) -> bool:
        """As asyncio would, with one timer and no cancelling."""
        if event.is_set() or timeout is None:
            return await event.wait()
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        event._waiters.append(waiter)
        timer = loop.call_later(timeout, _give_up, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            event._waiters.remove(waiter)
        return event.is_set()

    def thread(self, target: Callable[[], object], name: str) -> RunningThread:
        raise NotImplementedError(f"{name}: a thread that blocks cannot be simulated")

    def attendant(self, attend: Callable[[], bool], name: str) -> Attendant:
        return VirtualAttendant(self.process.new_loop(name), attend)

    def beside(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Beside:
        return VirtualBeside(self.process.new_loop(name), main)

    def give_way(self) -> None:
        """Nobody else is there."""

    def host(self) -> str:
        return self.process.host

    def pid(self) -> int:
        return self.process.pid

    def is_alive(self, pid: int) -> bool:
        return self.is_alive_there(pid)

    def process_mark(self) -> str:
        return ""

    def is_same_process(self, pid: int, mark: str) -> bool | None:
        """The numbers of simulated processes are never given twice."""
        return self.is_alive_there(pid)

    def has_children(self) -> bool:
        """Nothing simulated starts a process."""
        return False

    def lock_holder(self, path: Path, byte: int) -> int | None:
        """All simulated processes are one for the kernel."""
        return None

    async def in_thread(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """In a thread that runs only while everybody else stands still."""
        await asyncio.sleep(self.dice.random() * LATENCY_SECONDS)
        baton = Baton(asyncio.get_running_loop(), partial(fn, *args))
        self.batons.append(baton)
        try:
            result: T = await baton.run()
            return result
        finally:
            if baton.is_over:
                self.batons.remove(baton)

    def waiter(self) -> Callable[[Awaitable[Any]], Any]:
        return wait_here

    def leave(self) -> None:
        """The universe ends."""
        for baton in self.batons:
            baton.leave()
        for loop in self.process.loops:
            loop.forget()


def virtual_runtime(
    process: VirtualProcess, seed: str, is_alive_there: Callable[[int], bool]
) -> VirtualRuntime:
    """The runtime of one process; its ids and dice follow from the seed."""
    clock = VirtualClock(process.universe)
    dice = Dice(f"{seed}/{process.name}/{process.pid}")
    return VirtualRuntime(
        clock=clock,
        ids=SeededIds(dice.getrandbits(64), clock),
        pool=ThreadPool(1),
        process=process,
        dice=dice,
        is_alive_there=is_alive_there,
    )


def outside_of_loops(run: Callable[[], T]) -> T:
    """Run a universe although the caller may itself be a task of a real event loop."""
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


def _give_up(waiter: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class VirtualAttendant:
    """A loop that does nothing but attend."""

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

    async def ended(self) -> None:
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
            future.get_loop().call_soon_threadsafe(_give_up, future)


class VirtualBeside:
    """A coroutine on one more loop of the process."""

    def __init__(self, loop: VirtualLoop, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop = loop
        self._task = loop.create_task(main(), name=loop.name)

    def call(self, fn: Callable[[], object]) -> None:
        self._loop.call_soon(fn)

    async def ended(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._task.add_done_callback(lambda _: loop.call_soon_threadsafe(_give_up, future))
        timer = loop.call_later(timeout, _give_up, future)
        await future
        timer.cancel()
