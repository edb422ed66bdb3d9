"""How many turns a worker may hold: as many as it has slots, and some ahead of them while turns are quick."""

from __future__ import annotations

from endwell.runtime.clock import Clock
from endwell.runtime.recent import Recent

AHEAD_SECONDS = 0.02
"""So much work may be taken before there are slots for it; with slow turns that is nothing."""


class Capacity:
    """Commits are worth more when they take many turns; those that wait for a slot do so for a moment."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._recent = Recent(clock)

    def ended(self, count: int) -> None:
        """So many turns have ended."""
        self._recent.note(count)

    def waited_in_vain(self) -> None:
        """Turns are not as quick as they were."""
        self._recent.forget()

    @property
    def most(self) -> int:
        """At most twice as many as there are slots."""
        return self._slots + min(self._recent.within(AHEAD_SECONDS), self._slots)
