"""How many of something there were within the last second: how far ahead of it one may go."""

from __future__ import annotations

from collections import deque

from endwell.runtime.clock import Clock

WINDOW_SECONDS = 1.0


class Recent:
    """`note(count)` when it happens; `within(seconds)` is how many to expect in so much time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted: deque[tuple[float, int]] = deque()
        self._sum = 0

    def note(self, count: int) -> None:
        """So many just now."""
        if count:
            self._noted.append((self._clock.monotonic(), count))
            self._sum += count

    def forget(self) -> None:
        """What was is no longer to be expected."""
        self._noted.clear()
        self._sum = 0

    def within(self, seconds: float) -> int:
        """At the pace of the last second; none at a slow one."""
        since = self._clock.monotonic() - WINDOW_SECONDS
        while self._noted and self._noted[0][0] < since:
            self._sum -= self._noted.popleft()[1]
        return int(seconds * self._sum)
