"""The PMO process: clocks, then reclaims, then dispatch, once per interval. Any number of them may run."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.pmo.dispatch import Dispatcher
from endwell.pmo.inbox import InboxWatch
from endwell.pmo.relay.service import Relay
from endwell.pmo.watchdog import Watchdog
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.store.contract import Store
from endwell.store.held_tasks import HeldTasks
from endwell.store.probe import NOW, Probe
from endwell.store.reclaimer import LATE_INTERVALS, Absence, Reclaimer
from endwell.streams.orchestrator.service import StreamOrchestratorService

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
"""How long a stopping PMO waits for the message that its relay is just sending."""
FREE_SECONDS = 60.0
"""How often to look for tasks that are held for an effect that is settled."""
FOLD_SECONDS = 3600.0
"""How often counters of writers that have gone are added up, and for how long those must have been silent."""


MakeStreams = Callable[[str, Absence], StreamOrchestratorService]
"""Makes the service that feeds a stream, from the PMO's name and what it knows of its own absence."""
EARLY_SECONDS = 0.5
"""A renewal that would be due this soon is made now, not a whole tick later."""


class Pmo:
    """`run()` supervises until `stop()`; tests call `run_once()`."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        settings: Settings,
        *,
        namespace: str,
        name: str | None = None,
        relay: Relay | None = None,
        streams: MakeStreams | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self.name = name or f"pmo-{runtime.host()}-{runtime.pid()}"
        self.session_id = runtime.ids.new()
        about = {"namespace": namespace, "actor": self.name}
        self.watchdog = Watchdog(store, runtime, **about)
        self.inbox = InboxWatch(store, runtime, settings.pmo, **about)
        self._absence = Absence(
            runtime.clock,
            interval_seconds=settings.pmo.watchdog_interval_seconds,
            worker=settings.worker,
        )
        self.streams = None if streams is None else streams(self.name, self._absence)
        # Where a stream carries the turns, its own reclaimer comes first: it can say which entry it was.
        grace = settings.queue.reclaim_grace_seconds
        self.reclaimer = Reclaimer(store, runtime, self._absence, grace_seconds=grace, **about)
        self.dispatcher = Dispatcher(store, runtime, patience_seconds=settings.worker.poll_seconds, **about)
        self.relay = relay
        patience = int(settings.worker.poll_seconds * SECOND)
        # All that a tick looks for, in one statement: most ticks find nothing.
        self._asked = (
            Probe("due", (namespace, NOW, -1, "", 1)),
            Probe("expired_claims", (namespace, NOW, 1)),
            Probe("lapsed_sessions", (namespace, NOW, 1)),
            Probe("long_ready", (namespace, NOW, patience)),
            Probe("pending_since", (namespace, NOW, self.inbox.patience)),
            Probe("held_tasks", (namespace, "", 1)),
        )
        self._has_streams = False
        self._stop = asyncio.Event()
        self._renewed_at = -math.inf
        self._freeing = HeldTasks(store, runtime, **about)
        self._freed_at = -math.inf
        self._ticked_at: float | None = None
        self._folded_at = runtime.clock.monotonic()
        self.failures = 0

    async def start(self) -> None:
        """Leave word that a supervisor is there."""
        await self._store.one(self._session())
        if self.streams is not None and not self._has_streams:
            self._has_streams = True
            await self.streams.start()

    async def run(self) -> None:
        """Tick until told to stop. The relay runs beside it, and nothing here waits for it."""
        relaying = self._runtime.spawn(self.relay.run(), f"endwell-relay-{self.name}") if self.relay else None
        await self._tick()
        if self.relay is not None and relaying is not None:
            self.relay.stop()
            await asyncio.wait([relaying], timeout=STOP_SECONDS)
            relaying.cancel()

    async def _tick(self) -> None:
        while not self._stop.is_set():
            try:
                await self.run_once()
            except StoreError as error:
                self.failures += 1
                log.warning("%s: %s (%s)", self.name, error.message, error.code)
            except Exception:
                self.failures += 1
                log.exception("%s: a tick failed", self.name)
            await self._runtime.wait(self._stop, self._settings.pmo.watchdog_interval_seconds)

    async def run_once(self) -> None:
        """One tick: clocks, then what lies in the inbox, then reclaims, then new work."""
        seen = await self._store.glance(*self._asked)
        away = self._look_back(seen.now)
        if seen["due"]:
            await self.watchdog.run_once(away)
        if seen["pending_since"]:
            await self.inbox.run_once()
        if seen.any("expired_claims", "lapsed_sessions") and not self.is_patient:
            await self.reclaimer.run_once(seen.now)
        if seen.any("long_ready") and self.streams is None:
            await self.dispatcher.run_once()
        if seen["held_tasks"]:
            await self._free_held_tasks()
        await self._note_tick()

    async def _free_held_tasks(self) -> None:
        now = self._runtime.clock.monotonic()
        if now - self._freed_at >= FREE_SECONDS:
            self._freed_at = now
            await self._freeing.of_settled_effects()

    async def _note_tick(self) -> None:
        """Told at the end of a tick, so that a supervisor that never comes to it is not taken for one."""
        self._ticked_at = self._runtime.clock.monotonic()
        await self._renew_if_needed()
        if self._ticked_at - self._folded_at >= FOLD_SECONDS:
            self._folded_at = self._ticked_at
            idle = int(FOLD_SECONDS * SECOND)
            about = {"command_id": self._runtime.ids.new(), "namespace": self._namespace, "actor": self.name}
            await self._store.one(c.FoldTallies(**about, idle=idle))

    @property
    def is_patient(self) -> bool:
        """Whether nothing is reclaimed just now, because this supervisor has been away."""
        return not self._absence.is_over

    def _look_back(self, now: int) -> float:
        """A gap in the store's answers (sleep, outage) hit the workers too: wait one heartbeat for them."""
        away = self._absence.answered(now)
        if away:
            log.warning("%s was away for %.1f s; reclaims wait one heartbeat", self.name, away)
        # less than a lease is a slow tick: whoever works has been heard of meanwhile
        return away if away > self._settings.worker.lease_seconds else 0.0

    async def _renew_if_needed(self) -> None:
        """At a worker's pace: whoever looks for supervisors allows them three intervals."""
        pace = min(self._settings.worker.heartbeat_seconds, 2 * self._settings.pmo.watchdog_interval_seconds)
        now = self._runtime.clock.monotonic()
        if now - self._renewed_at >= pace - EARLY_SECONDS:
            await self._renew()
            self._renewed_at = now

    async def _renew(self) -> None:
        beat = c.Heartbeat(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self.name,
            session_id=self.session_id,
            lease=self._lease(),
            tick_age=self._tick_age(),
        )
        (reply,) = await self._store.commit((beat,))
        if reply.refusal is not None:
            self.session_id = self._runtime.ids.new()
            await self.start()

    def _tick_age(self) -> int | None:
        if self._ticked_at is None:
            return None
        return int((self._runtime.clock.monotonic() - self._ticked_at) * SECOND)

    def _session(self) -> c.OpenSession:
        return c.OpenSession(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self.name,
            session_id=self.session_id,
            kind="pmo",
            name=self.name,
            host=self._runtime.host(),
            pid=self._runtime.pid(),
            agents=(),
            concurrency=0,
            lease=self._lease(),
            process=self._runtime.process_mark(),
        )

    def _lease(self) -> int:
        seconds = LATE_INTERVALS * self._settings.pmo.watchdog_interval_seconds
        return int(max(seconds, self._settings.worker.lease_seconds) * SECOND)

    def stop(self) -> None:
        """`run` returns after the tick under way."""
        self._stop.set()

    async def close(self) -> None:
        """Say goodbye."""
        if self.streams is not None:
            await self.streams.close()
        if self.relay is not None:
            await self.relay.close()
        goodbye = c.CloseSession(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self.name,
            session_id=self.session_id,
        )
        try:
            await self._store.commit((goodbye,))
        except StoreError as error:
            log.warning("%s could not say goodbye, its lease will lapse: %s", self.name, error)
