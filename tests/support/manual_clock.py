"""A clock that tests move."""

from __future__ import annotations

from endwell.model.moments import SECOND


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start_us: int = 0) -> None:
        self._now_us = start_us
        self._elapsed_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._elapsed_us / SECOND

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("time does not pass backwards; use set() to correct the wall clock")
        self.set(self._now_us + round(seconds * SECOND))

    def set(self, now_us: int) -> None:
        """Set the wall clock; moving it back simulates a correction by an operator.

        The monotonic clock follows only forward moves.
        """
        self._elapsed_us += max(0, now_us - self._now_us)
        self._now_us = now_us
