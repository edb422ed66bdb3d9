"""The scheduler of virtual time: many processes in one thread, under one virtual clock.

Each process has event loops of its own, one for each thread that a real process would have. Callbacks of one
loop run in asyncio's order; seeded dice decide which loop runs next. When no loop is ready, time jumps to the
next timer. The same seed gives the same course of events, to the microsecond.
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

from endwell.model.moments import SECOND

START_US: Final = 1_767_225_600 * SECOND
"""Midnight of 1 January 2026."""
LONGEST_STEP_US: Final = 40
"""Longest time that one callback takes. The shortest is 1: a busy loop must not stop the clock."""

Ts = TypeVarTuple("Ts")
Callback = Callable[[], object]


class Dice(random.Random):
    """Seeded chance. Each user has dice of its own, so that an extra throw changes no other user's throws."""

    def happens(self, probability: float) -> bool:
        """Whether an event of this probability takes place."""
        return self.random() < probability


class VirtualScheduler:
    """Holds virtual time, its timers, and the loops that can run. `run_until` runs them."""

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
        """The time that the wall clock shows."""
        return self.start_us + self.elapsed_us + self.wall_offset_us

    def run_at(self, elapsed_us: int, call: Callback) -> None:
        """Make a call at a moment; it belongs to no process."""
        self.push_timer(elapsed_us, None, call)

    def run_after(self, seconds: float, call: Callback) -> None:
        """Make a call after a delay."""
        self.run_at(self.elapsed_us + round(seconds * SECOND), call)

    def push_timer(self, when_us: int, loop: VirtualLoop | None, call: Any) -> None:
        self._count += 1
        heapq.heappush(self._timers, (when_us, self._count, loop, call))

    def list_runnable(self, loop: VirtualLoop) -> None:
        if not loop.is_listed:
            loop.is_listed = True
            self._runnable.append(loop)

    def run_until(self, elapsed_us: int, done: Callable[[], bool] | None = None) -> bool:
        """Run until that moment, or until `done` returns True; return whether it did."""
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
        """Run one callback or one timer; return False when none is left before the limit."""
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
        self._fire_timer()
        return True

    def _fire_timer(self) -> None:
        _, _, loop, call = heapq.heappop(self._timers)
        if loop is None:
            call()
        elif not call._cancelled:
            loop.put_callback(call)

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
    """Event loops that run, pause and die together."""

    def __init__(self, scheduler: VirtualScheduler, name: str, pid: int, host: str = "machine") -> None:
        self.scheduler = scheduler
        self.name = name
        self.pid = pid
        self.host = host
        self.loops: list[VirtualLoop] = []
        self.is_dead = False
        self.is_paused = False

    def new_loop(self, name: str) -> VirtualLoop:
        """Add a loop, as a real process would start a thread."""
        loop = VirtualLoop(self, f"{self.name}/{name}")  # type: ignore[abstract]  # no sockets, no signals
        self.loops.append(loop)
        return loop

    def kill(self) -> None:
        """Run none of its code again. Its coroutines are kept, so that no `finally` of them runs either."""
        self.is_dead = True

    def pause(self) -> None:
        """Stop it where it stands, while time passes."""
        self.is_paused = True

    def resume(self) -> None:
        """Let it run again; what is overdue by now happens at once."""
        self.is_paused = False
        for loop in self.loops:
            loop.wake()


class VirtualLoop(asyncio.AbstractEventLoop):
    """An asyncio event loop in virtual time, without sockets."""

    def __init__(self, process: VirtualProcess, name: str) -> None:
        self.process = process
        self.name = name
        self.scheduler = process.scheduler
        self.is_listed = False
        self.is_stalled = False
        self.failures: list[dict[str, Any]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def can_run(self) -> bool:
        """Whether it has a callback to run and may run it."""
        process = self.process
        return bool(self._ready) and not (process.is_dead or process.is_paused or self.is_stalled)

    def run_next(self) -> None:
        """Run one callback."""
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        if self.scheduler.running is not self:
            self.scheduler.running = self
            asyncio._set_running_loop(self)
        handle._run()

    def put_callback(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        if not self.is_listed:
            self.scheduler.list_runnable(self)

    def wake(self) -> None:
        """Let the scheduler know that it may be able to run."""
        if self._ready:
            self.scheduler.list_runnable(self)

    def stall_for(self, seconds: float) -> None:
        """Block this loop for a time; the other loops of the process run."""
        self.is_stalled = True

        def end_stall() -> None:
            self.is_stalled = False
            self.wake()

        self.scheduler.run_after(seconds, end_stall)

    def forget(self) -> None:
        """Drop every task and callback that has not finished."""
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):  # its `finally` blocks find nothing to talk to
                task.get_coro().close()
        self._ready.clear()
        self._tasks.clear()

    def time(self) -> float:
        return self.scheduler.elapsed_us / SECOND

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.put_callback(handle)
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
        self.scheduler.push_timer(max(round(when * SECOND), self.scheduler.elapsed_us + 1), self, timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn(self, coro: Any, name: str) -> asyncio.Task[Any]:
        """Run a coroutine on this loop, for callers that are on no loop."""
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
        """Do nothing: a cancelled timer is skipped when its time comes."""
