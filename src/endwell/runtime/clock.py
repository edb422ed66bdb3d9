"""What time it is: wall time in integer microseconds (UTC), and a clock that never runs back."""

from __future__ import annotations

import time
from typing import Protocol

MICROSECONDS = 1_000_000


class Clock(Protocol):
    """`now_us` is for what is stored; `monotonic` is for measuring how long something took."""

    def now_us(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)  # without a call of our own: every step asks six times

    def now_us(self) -> int:
        return time.time_ns() // 1000


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start_us: int = 0) -> None:
        self._now_us = start_us
        self._elapsed_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._elapsed_us / MICROSECONDS

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("time does not pass backwards; use set() to correct the wall clock")
        self.set(self._now_us + round(seconds * MICROSECONDS))

    def set(self, now_us: int) -> None:
        """Move the wall clock; moved back, it stands for an operator's correction.

        The monotonic clock follows forward moves only, as a real one would.
        """
        self._elapsed_us += max(0, now_us - self._now_us)
        self._now_us = now_us
