"""How long to wait before a server that failed is asked again: longer each time, never in a hot loop."""

from __future__ import annotations

from endwell.runtime.base import Runtime

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0


class Backoff:
    """`pause()` after a failure, `reset()` after a success."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seconds = FIRST_PAUSE_SECONDS
        self.failures = 0

    def reset(self) -> None:
        """It works: the next failure is the first again."""
        self._seconds = FIRST_PAUSE_SECONDS
        self.failures = 0

    async def pause(self) -> None:
        """Wait, with some chance in it, so that many do not come back at once."""
        self.failures += 1
        await self._runtime.sleep(self._seconds * (0.5 + self._runtime.ids.fraction()))
        self._seconds = min(2 * self._seconds, LONGEST_PAUSE_SECONDS)
