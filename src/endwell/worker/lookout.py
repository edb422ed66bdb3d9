"""What a worker knows of work without claiming any: whether there is some, and when the next starts.

A claim is a transaction; a look is one statement. The watchdog's tick looks for the worker as well, so that
an idle one hardly asks by itself while its doorbell works. A look that finds what no ring announced shows
that rings are lost, whatever the bell says of itself: then the worker looks as often as with a dead one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.store.contract import Store
from endwell.store.glance import NOW, Ask, Seen

RARELY = 6
"""How many poll intervals pass between two polls while the doorbell works."""
DISTRUST_SECONDS = 300.0
"""For so long after a lost ring a bell is not relied on, unless it rings."""


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
    ) -> None:
        self._store = store
        self._poll = poll_seconds
        self._is_unannounced = False
        self._distrusts_until = -math.inf
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
        self._is_unannounced = seen.any("offered_to_some", "ready_for_some")
        return self._is_unannounced

    def claimed(self) -> None:
        """A claim looks too, but does not say what starts later."""
        self.looked_at = self._clock.monotonic()
        self._knows_start = False

    async def seconds_to_next_start(self) -> float:
        """How long until a delayed task starts; no bell will tell."""
        if not self._knows_start:
            await self.look()
        return max(0.0, self._start_at - self._clock.monotonic())

    def rung(self) -> None:
        """A ring came through."""
        self._is_unannounced = False
        self._distrusts_until = -math.inf

    def took(self, count: int) -> None:
        """So many tasks were claimed. If only a look had told of them, their rings were lost."""
        if count and self._is_unannounced:
            self._distrusts_until = self._clock.monotonic() + DISTRUST_SECONDS
        self._is_unannounced = False

    def pace_seconds(self, *, is_connected: bool) -> float:
        """How long to rest between two looks: a doorbell that works makes them a mere precaution."""
        may_rely = is_connected and self._clock.monotonic() >= self._distrusts_until
        return RARELY * self._poll if may_rely else self._poll

    @property
    def seconds_since(self) -> float:
        """How long ago somebody looked."""
        return self._clock.monotonic() - self.looked_at
