"""What a worker knows of work without claiming any: whether there is some, and when the next starts.

A claim is a transaction; a look is one statement. A worker looks once per poll interval, whatever its bell
says: a ring may be lost by a bell that works, or never be sent by whoever died after the commit. So a lost
ring costs at most that interval. The watchdog's tick looks for the worker as well, which need not ask then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.store.contract import Store
from endwell.store.glance import NOW, Ask, Seen


class Lookout:
    """For some agents of one namespace."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        namespace: str,
        agents: Sequence[str],
        poll_seconds: float,
        look_seconds: float,
    ) -> None:
        self._store = store
        self._poll = poll_seconds
        self._look = look_seconds
        self._clock = runtime.clock
        self.asked = (
            Ask("offered_to_some", (namespace, list(agents))),
            Ask("ready_for_some", (namespace, list(agents), NOW)),
            Ask("next_start_of_some", (namespace, list(agents), NOW), is_value=True),
        )
        self._knows_start = False
        self._start_at = math.inf
        self._as_of = 0
        self.looked_at = 0.0

    async def look(self) -> bool:
        """Whether there is something to take."""
        seen = await self._store.glance(*self.asked)
        self._knows_start = True
        self._as_of = seen.now  # whatever the clock said before: it may have been set back
        return self.take(seen)

    def take(self, seen: Seen) -> bool:
        """Learn from a look that somebody made, unless it is older than what is known."""
        self.looked_at = self._clock.monotonic()
        if self._knows_start and seen.now >= self._as_of:
            start = seen["next_start_of_some"]
            self._start_at = math.inf if start is None else self.looked_at + (start - seen.now) / SECOND
            self._as_of = seen.now
        return seen.any("offered_to_some", "ready_for_some")

    def claimed(self) -> None:
        """A claim looks too, but does not say what starts later."""
        self.looked_at = self._clock.monotonic()
        self._knows_start = False

    async def seconds_to_next_start(self) -> float:
        """How long until a delayed task starts; no bell will tell."""
        if not self._knows_start:
            await self.look()
        return max(0.0, self._start_at - self._clock.monotonic())

    def seconds_to_next_look(self, *, is_connected: bool) -> float:
        """How long the worker may rest, whatever it was woken for meanwhile."""
        pace = self._look if is_connected else self._poll
        return max(0.0, pace - (self._clock.monotonic() - self.looked_at))

    def begin(self) -> None:
        """The next look is a whole interval away from now, also if this one fails."""
        self.looked_at = self._clock.monotonic()
