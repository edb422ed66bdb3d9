"""When the stream is fed: at once for what is rung, when room comes free, and now and then after a look."""

from __future__ import annotations

import asyncio
import math

from endwell.doorbell.contract import EVERYTHING, Doorbell
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.store.cached_probe import CachedProbe
from endwell.store.contract import Store
from endwell.store.probe import NOW, Probe, ProbeResult
from endwell.streams.orchestrator.publisher import Publisher

LOOK_SOON_SECONDS = 0.05
"""After offering what a ring named: some of it may have to start a little later."""
LONGEST_REST_SECONDS = 4.0
"""However quiet it is; a lead that was lost shows then, too."""


class PublishRounds:
    """`run_once()` is one round of the leader; it ends when there is something to do, or to look for."""

    def __init__(
        self,
        store: Store,
        bell: Doorbell,
        runtime: Runtime,
        settings: Settings,
        feed: Publisher,
        *,
        namespace: str,
    ) -> None:
        self._store = store
        self._bell = bell
        self._runtime = runtime
        self._settings = settings
        self._feed = feed
        self._namespace = namespace
        # one statement for both questions, and none while nothing happens: most looks find nothing
        ready, start = (
            Probe("long_ready", (namespace, NOW, 0)),
            Probe("next_start", (namespace, NOW), is_value=True),
        )
        self.looked_for = CachedProbe(store, ready, start, due="next_start")
        self._something = asyncio.Event()
        self._rung: set[str] = set()
        self._has_ended = False
        self._seen_at = (0, 0.0)
        self._look_at = -math.inf

    def look_again(self) -> None:
        """What is known may be wrong."""
        self._look_at = -math.inf
        self._something.set()

    def heard(self, topics: frozenset[str]) -> None:
        """Somebody rang."""
        if EVERYTHING in topics:
            self.look_again()
            return
        if f"ended:{self._namespace}" in topics:
            self._has_ended = True
            if self._feed.short:  # who did not wait for room has nothing to do
                self._something.set()
        work = f"work:{self._namespace}:"
        agents = {topic.removeprefix(work) for topic in topics if topic.startswith(work)}
        if agents:
            self._rung |= agents
            self._something.set()

    async def run_once(self) -> None:
        """For agents that were rung for there is no need to look around; but now and then one does."""
        self._something.clear()
        rung, self._rung = self._rung, set()
        clock = self._runtime.clock
        if clock.monotonic() >= self._look_at:
            await self.look()
        elif rung and await self._feed.offer(rung):
            self._look_at = min(self._look_at, clock.monotonic() + LOOK_SOON_SECONDS)
        elif self._feed.short and self._has_ended:
            await self._count()
        else:
            await self.look()
        self._rung |= self._feed.more
        if self._rung or (self._feed.short and self._has_ended):
            return
        await self._runtime.wait(self._something, max(0.0, self._look_at - clock.monotonic()))

    async def look(self) -> None:
        """Whether something is ready, whoever has it; then offer what there is room for."""
        self._has_ended = False
        seen = await self.looked_for.ask()
        self._seen_at = seen.now, self._runtime.clock.monotonic()
        if seen["long_ready"]:
            await self._feed.run_once(seen.now)
        else:
            self._feed.rest()
        self._look_at = self._runtime.clock.monotonic() + self._rest_seconds(seen)

    async def _count(self) -> None:
        """Something waits for room, and there may be some again."""
        await self._runtime.sleep(max(0.0, self._feed.seconds_to_count()))
        self._has_ended = False
        now, at = self._seen_at
        passed = int((self._runtime.clock.monotonic() - at) * SECOND)
        await self._feed.run_once(now + passed, self._feed.short)

    def _rest_seconds(self, seen: ProbeResult) -> float:
        """Until the next start, or a look for what no ring announced."""
        is_rung, is_free = self._bell.health().connected, self._store.has_stamps
        rest = self._settings.worker.pace_seconds(is_free=is_free, is_rung=is_rung)
        start = seen["next_start"]
        soon = math.inf if start is None else (start - seen.now) / SECOND
        return max(0.0, min(rest, soon, LONGEST_REST_SECONDS))
