"""Pauses between attempts to reach a server that failed: each is longer than the last, with jitter."""

from __future__ import annotations

from endwell.runtime.base import Runtime


class Backoff:
    """`pause()` after a failure, `reset()` after a success."""

    def __init__(
        self, runtime: Runtime, *, first_seconds: float = 0.05, longest_seconds: float = 2.0
    ) -> None:
        self._runtime = runtime
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._seconds = first_seconds

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._seconds = self._first_seconds

    async def pause(self) -> None:
        """Wait; the jitter keeps many clients from returning at the same moment."""
        await self._runtime.sleep(self._seconds * (0.5 + self._runtime.ids.fraction()))
        self._seconds = min(2 * self._seconds, self._longest_seconds)
