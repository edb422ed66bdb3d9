"""The rate of something within the last second, to tell how much of it to expect."""

from __future__ import annotations

from collections import deque

from endwell.runtime.clock import Clock

WINDOW_SECONDS = 1.0


class Recent:
    """Counts what happened within the last second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int) -> None:
        """Count what happened just now."""
        if count:
            self._noted.append((self._clock.monotonic(), count))
            self._sum += count

    def forget(self) -> None:
        """Reset the count."""
        self._noted.clear()
        self._sum = 0

    def expected_within(self, seconds: float) -> int:
        """How many to expect in this time at the rate of the last second."""
        since = self._clock.monotonic() - WINDOW_SECONDS
        while self._noted and self._noted[0][0] < since:
            self._sum -= self._noted.popleft()[1]
        return int(seconds * self._sum)
