"""A universe: many processes in one thread, under one virtual clock and one seeded choice of who runs next.

Each process has event loops of its own (one for each thread that it would have); within a loop callbacks run
in the order in which asyncio promises them, between loops the dice decide. When nobody is ready, time jumps
to the next timer. The same seed gives the same course of events, to the microsecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeVarTuple

from endwell.runtime.clock import MICROSECONDS

START_US: Final = 1_767_225_600 * MICROSECONDS
"""The first of January 2026: an ordinary day."""
LONGEST_STEP_US: Final = 40
"""What one callback takes at most. Never nothing: a loop that spins must not stop the clock."""

Ts = TypeVarTuple("Ts")
Callback = Callable[[], object]


class Dice(random.Random):
    """Seeded chance; each who draws has dice of its own, so that one more throw changes nobody else's."""

    def happens(self, probability: float) -> bool:
        """Whether something of that probability takes place."""
        return self.random() < probability


class Universe:
    """Holds the time and the processes. `run_until` lets them live."""

    def __init__(self, seed: int, *, start_us: int = START_US, sticky: float = 0.5) -> None:
        self._chance = Dice(f"{seed}/scheduler").random
        self.elapsed_us = 0
        self.start_us = start_us
        self.wall_offset_us = 0
        self.steps = 0
        self.current: VirtualLoop | None = None
        self.running: VirtualLoop | None = None
        self._sticky = sticky
        self._timers: list[tuple[int, int, VirtualLoop | None, Any]] = []
        self._count = 0
        self._runnable: list[VirtualLoop] = []

    @property
    def now_us(self) -> int:
        """What the wall clock shows."""
        return self.start_us + self.elapsed_us + self.wall_offset_us

    def at(self, elapsed_us: int, call: Callback) -> None:
        """Have something happen at a moment; it belongs to no process."""
        self.push(elapsed_us, None, call)

    def after(self, seconds: float, call: Callback) -> None:
        """Have something happen in a while."""
        self.at(self.elapsed_us + round(seconds * MICROSECONDS), call)

    def push(self, when_us: int, loop: VirtualLoop | None, call: Any) -> None:
        self._count += 1
        heapq.heappush(self._timers, (when_us, self._count, loop, call))

    def list_runnable(self, loop: VirtualLoop) -> None:
        if not loop.is_listed:
            loop.is_listed = True
            self._runnable.append(loop)

    def run_until(self, elapsed_us: int, done: Callable[[], bool] | None = None) -> bool:
        """Live until that moment, or until `done` says so; whether it did."""
        try:
            while done is None or not done():
                if not self._step(elapsed_us):
                    self.elapsed_us = max(self.elapsed_us, elapsed_us)
                    return done is not None and done()
            return True
        finally:
            self.running = None
            asyncio._set_running_loop(None)

    def _step(self, limit_us: int) -> bool:
        """One callback, or one timer. False when nothing is left to do before the limit."""
        timers = self._timers
        if not (timers and timers[0][0] <= self.elapsed_us):
            loop = self._next_loop()
            if loop is not None:
                if self.elapsed_us >= limit_us:
                    return False
                self.elapsed_us += 1 + int(self._chance() * LONGEST_STEP_US)
                self.steps += 1
                loop.run_next()
                return True
            while timers and _is_cancelled(timers[0]):
                heapq.heappop(timers)
            if not timers or timers[0][0] > limit_us:
                return False
            self.elapsed_us = max(self.elapsed_us, timers[0][0])
        self._fire()
        return True

    def _fire(self) -> None:
        _, _, loop, call = heapq.heappop(self._timers)
        if loop is None:
            call()
        elif not call._cancelled:
            loop.put(call)

    def _next_loop(self) -> VirtualLoop | None:
        chance, current = self._chance, self.current
        if current is not None and current.can_run and chance() < self._sticky:
            return current
        runnable = self._runnable
        while runnable:
            place = int(chance() * len(runnable))
            loop = runnable[place]
            if loop.can_run:
                self.current = loop
                return loop
            loop.is_listed = False
            runnable[place] = runnable[-1]
            runnable.pop()
        self.current = None
        return None


def _is_cancelled(timer: tuple[int, int, VirtualLoop | None, Any]) -> bool:
    return timer[2] is not None and (timer[3].cancelled() or timer[2].process.is_dead)


class VirtualProcess:
    """Event loops that live, stop and die together."""

    def __init__(self, universe: Universe, name: str, pid: int, host: str = "machine") -> None:
        self.universe = universe
        self.name = name
        self.pid = pid
        self.host = host
        self.loops: list[VirtualLoop] = []
        self.is_dead = False
        self.is_paused = False

    def new_loop(self, name: str) -> VirtualLoop:
        """One more, as for one more thread."""
        loop = VirtualLoop(self, f"{self.name}/{name}")  # type: ignore[abstract]  # no sockets, no signals
        self.loops.append(loop)
        return loop

    def kill(self) -> None:
        """Nothing of it ever runs again. Its coroutines are kept: no `finally` of them runs either."""
        self.is_dead = True

    def pause(self) -> None:
        """Stop it where it stands; time goes on."""
        self.is_paused = True

    def resume(self) -> None:
        """Everything that is overdue by now happens at once."""
        self.is_paused = False
        for loop in self.loops:
            loop.wake()


class VirtualLoop(asyncio.AbstractEventLoop):
    """What asyncio needs of an event loop, without sockets, in virtual time."""

    def __init__(self, process: VirtualProcess, name: str) -> None:
        self.process = process
        self.name = name
        self.universe = process.universe
        self.is_listed = False
        self.is_stalled = False
        self.failures: list[dict[str, Any]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def can_run(self) -> bool:
        """Whether it has something to do and may do it."""
        process = self.process
        return bool(self._ready) and not (process.is_dead or process.is_paused or self.is_stalled)

    def run_next(self) -> None:
        """One callback."""
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        if self.universe.running is not self:
            self.universe.running = self
            asyncio._set_running_loop(self)
        handle._run()

    def put(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        if not self.is_listed:
            self.universe.list_runnable(self)

    def wake(self) -> None:
        """It may have become able to run."""
        if self._ready:
            self.universe.list_runnable(self)

    def stall(self, seconds: float) -> None:
        """Something blocks this loop for so long; the process's others go on."""
        self.is_stalled = True

        def go_on() -> None:
            self.is_stalled = False
            self.wake()

        self.universe.after(seconds, go_on)

    def forget(self) -> None:
        """Let go of everything that was never finished."""
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):  # its `finally` blocks find nothing to talk to
                task.get_coro().close()
        self._ready.clear()
        self._tasks.clear()

    def time(self) -> float:
        return self.universe.elapsed_us / MICROSECONDS

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.put(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self.universe.push(max(round(when * MICROSECONDS), self.universe.elapsed_us + 1), self, timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn(self, coro: Any, name: str) -> asyncio.Task[Any]:
        """Run a coroutine here; for those who are on no loop."""
        return self.create_task(coro, name=name)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.process.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when its time comes."""
