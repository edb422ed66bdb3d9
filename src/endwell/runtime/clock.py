"""Clocks: wall time in integer microseconds (UTC), and a monotonic clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """`now_us` is for stored times; `monotonic` measures durations."""

    def now_us(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)  # no call of our own: every step reads it six times

    def now_us(self) -> int:
        return time.time_ns() // 1000
