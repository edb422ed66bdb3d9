"""What a worker knows of work without claiming any: whether there is some, and when the next starts.

A claim is a transaction; a look is one statement, or none where the store tells that nothing has happened.
A worker looks once per interval, whatever its bell says: a ring may be lost by a bell that works, or never be
sent by whoever died after the commit. So a lost ring costs at most that interval. The watchdog's tick looks
for the worker as well, which need not ask then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.cached_probe import CachedProbe
from endwell.store.contract import Store
from endwell.store.probe import NOW, Probe, ProbeResult


class WorkProbe:
    """For some agents of one namespace."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        namespace: str,
        agents: Sequence[str],
        settings: WorkerSettings,
    ) -> None:
        self._settings = settings
        self._clock = runtime.clock
        self.asked = (
            Probe("offered_to_some", (namespace, list(agents))),
            Probe("ready_for_some", (namespace, list(agents), NOW)),
            Probe("next_start_of_some", (namespace, list(agents), NOW), is_value=True),
        )
        self._standing = CachedProbe(store, *self.asked, due="next_start_of_some")
        self._start_at = math.inf
        self.is_free = store.has_stamps
        self.looked_at = 0.0

    async def look(self) -> bool:
        """Whether there is something to take."""
        return self._note(await self._standing.ask())

    def take(self, seen: ProbeResult) -> bool:
        """Learn from a look that somebody made, unless it is older than what is known."""
        known = self._standing.known
        if known is not None and seen.now >= known.now:
            self._standing.learn(seen)
            return self._note(seen)
        self.begin()
        return _is_work(seen)

    def _note(self, seen: ProbeResult) -> bool:
        self.begin()
        start = seen["next_start_of_some"]
        self._start_at = math.inf if start is None else self.looked_at + (start - seen.now) / SECOND
        return _is_work(seen)

    def claimed(self) -> None:
        """A claim looks too, but does not say what starts later."""
        self.begin()
        self._standing.forget()

    async def seconds_to_next_start(self) -> float:
        """How long until a delayed task starts; no bell will tell."""
        if self._standing.known is None:
            await self.look()
        return max(0.0, self._start_at - self._clock.monotonic())

    def pace_seconds(self, *, is_rung: bool) -> float:
        """From one look to the next; `is_rung`: the bell says that it works."""
        return self._settings.pace_seconds(is_free=self.is_free, is_rung=is_rung)

    def seconds_to_next_look(self, pace_seconds: float) -> float:
        """How long the worker may rest, whatever it was woken for meanwhile."""
        return max(0.0, pace_seconds - (self._clock.monotonic() - self.looked_at))

    def begin(self) -> None:
        """The next look is a whole interval away from now, also if this one fails."""
        self.looked_at = self._clock.monotonic()


def _is_work(seen: ProbeResult) -> bool:
    return seen.any("offered_to_some", "ready_for_some")
