"""What a worker knows of work without claiming any: whether there is some, and when the next task starts.

A claim is a transaction; a probe is one statement, or none where the store knows that nothing has changed. A
worker looks once per interval, whatever its doorbell says, because a ring may be lost: that costs at most the
interval. The watchdog's tick asks the same questions, so the worker need not ask then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from endwell.errors import StoreError
from endwell.policy.limits import SECOND
from endwell.runtime.clock import Clock
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.actor import Actor
from endwell.store.probe import NOW, CachedProbe, Probe, ProbeResult


class WorkProbe:
    """Looks for work for some agents of one namespace."""

    def __init__(self, actor: Actor, clock: Clock, settings: WorkerSettings, agents: Sequence[str]) -> None:
        self._clock = clock
        self._settings = settings
        agents = list(agents)
        self.questions = (
            Probe("offered_to_some", (actor.namespace, agents)),
            Probe("ready_for_some", (actor.namespace, agents, NOW)),
            Probe("next_start_of_some", (actor.namespace, agents, NOW), is_value=True),
        )
        self._cached = CachedProbe(actor.store, *self.questions, due="next_start_of_some")
        self._start_at = math.inf
        self.is_free = actor.store.has_stamps
        self.looked_at = 0.0

    async def look(self) -> bool:
        """Whether there is work to claim."""
        return self._update(await self._cached.ask())

    def learn(self, result: ProbeResult) -> bool:
        """Take over the watchdog's answers, unless newer ones are known; whether there is work to claim."""
        known = self._cached.known
        if known is not None and result.now >= known.now:
            self._cached.adopt(result)
            return self._update(result)
        self.postpone()
        return _has_work(result)

    def _update(self, result: ProbeResult) -> bool:
        self.postpone()
        start = result["next_start_of_some"]
        self._start_at = math.inf if start is None else self.looked_at + (start - result.now) / SECOND
        return _has_work(result)

    def on_claim(self) -> None:
        """A claim finds ready tasks, but does not say when the next one starts."""
        self.postpone()
        self._cached.forget()

    async def seconds_to_next_start(self) -> float:
        """Seconds until a delayed task starts, which no ring announces."""
        try:
            if self._cached.known is None:
                await self.look()
        except StoreError:
            return self._settings.poll_seconds
        return max(0.0, self._start_at - self._clock.monotonic())

    def pace_seconds(self, *, is_rung: bool) -> float:
        """Seconds from one look to the next; `is_rung`: the doorbell says that it works."""
        return self._settings.pace_seconds(is_free=self.is_free, is_rung=is_rung)

    def seconds_to_next_look(self, pace_seconds: float) -> float:
        """How long the worker may rest, whatever it was woken for before."""
        return max(0.0, pace_seconds - (self._clock.monotonic() - self.looked_at))

    def postpone(self) -> None:
        """The next look is a whole interval away from now, also if this one fails."""
        self.looked_at = self._clock.monotonic()


def _has_work(result: ProbeResult) -> bool:
    return result.has_any("offered_to_some", "ready_for_some")
