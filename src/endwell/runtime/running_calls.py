"""The registry of effect calls in progress in one process, by effect key.

A call is in progress while its function runs, and while anything runs that the function started: threads,
asyncio tasks, subprocesses (`runtime/followed_work.py`). So a call may outlive the coroutine that awaited it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar


class RunningCall:
    """One call of an effect's function, with everything that it started."""

    def __init__(self, key: str, attempt_id: str, step: str, since_us: int) -> None:
        self.key = key
        self.attempt_id = attempt_id
        self.step = step
        self.since_us = since_us
        self.has_returned = False
        self._parts: list[Callable[[], bool]] = []
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether its function has returned, and everything that the function started has ended."""
        return self.has_returned and not any(is_open() for is_open in self._parts)

    def add(self, is_open: Callable[[], bool]) -> None:
        """Count something that the function started, until `is_open` returns False."""
        with self._lock:  # threads of the function start work too
            self._parts = [*(part for part in self._parts if part()), is_open]


CURRENT_CALL: ContextVar[RunningCall | None] = ContextVar("endwell_current_call", default=None)
"""Set inside an effect's function and everything that it starts."""


class RunningCalls:
    """All effect calls in progress in this process. Used from the event loops and from heartbeat threads."""

    def __init__(self) -> None:
        self._calls: tuple[RunningCall, ...] = ()
        self._lock = threading.Lock()

    def begin(self, key: str, attempt_id: str, step: str, since_us: int) -> RunningCall | None:
        """Register a call; it is in the registry until it is over.

        None while another call of the key is in progress: then this one must not be made.
        """
        with self._lock:
            if self.is_running(key):
                return None
            call = RunningCall(key, attempt_id, step, since_us)
            self._calls = (*self.in_progress(), call)
            return call

    def in_progress(self) -> tuple[RunningCall, ...]:
        """The calls that are not over."""
        return tuple(call for call in self._calls if not call.is_over)

    def is_running(self, key: str) -> bool:
        """Whether a call of this key is in progress."""
        return any(call.key == key for call in self.in_progress())
