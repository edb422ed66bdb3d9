"""The PMO's service: one tick per interval. Any number of PMOs may run at once."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.pmo.dispatch import Dispatcher
from endwell.pmo.held_tasks import free_tasks_of_settled_effects
from endwell.pmo.inbox import InboxWatch
from endwell.pmo.relay.service import Relay
from endwell.pmo.session import PmoSession
from endwell.pmo.watchdog import Watchdog
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.store.actor import Actor
from endwell.store.probe import NOW, Probe
from endwell.store.reclaimer import Absence, Reclaimer
from endwell.streams.orchestrator.service import StreamOrchestratorService

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
"""How long a stopping PMO waits for the message that its relay is sending."""
FREE_SECONDS = 60.0
"""Seconds between two looks for tasks that are held for an effect that is settled."""
FOLD_SECONDS = 3600.0
"""Seconds between two foldings of counters; a writer's own are folded after it was silent for as long."""

MakeStreams = Callable[[str, Absence], StreamOrchestratorService]
"""Makes the service that feeds a stream, from the PMO's name and its record of its own absence."""


class Pmo:
    """The supervisor: `run()` ticks until `stop()`; tests call `run_once()`."""

    def __init__(
        self,
        actor: Actor,
        runtime: Runtime,
        settings: Settings,
        *,
        relay: Relay | None = None,
        streams: MakeStreams | None = None,
    ) -> None:
        self._actor = actor
        self._runtime = runtime
        self._settings = settings
        self.name = actor.name
        self.session = PmoSession(actor, runtime, settings)
        self.watchdog = Watchdog(actor)
        self.inbox = InboxWatch(actor, settings.pmo)
        self._absence = Absence(
            runtime.clock,
            interval_seconds=settings.pmo.watchdog_interval_seconds,
            worker=settings.worker,
        )
        self.streams = None if streams is None else streams(self.name, self._absence)
        # The streams' own reclaimer comes first, because it knows the entry: hence the grace.
        grace = settings.queue.reclaim_grace_seconds
        self.reclaimer = Reclaimer(actor, runtime, self._absence, grace_seconds=grace)
        self.dispatcher = Dispatcher(actor, patience_seconds=settings.worker.poll_seconds)
        self.relay = relay
        self._probes = self._make_probes()
        self._stop = asyncio.Event()
        self._freed_at = -math.inf
        self._folded_at = runtime.clock.monotonic()
        self.failures = 0

    def _make_probes(self) -> tuple[Probe, ...]:
        """The questions of a tick, asked as one statement: most ticks find nothing."""
        namespace = self._actor.namespace
        patience = int(self._settings.worker.poll_seconds * SECOND)
        return (
            Probe("due", (namespace, NOW, -1, "", 1)),
            Probe("expired_claims", (namespace, NOW, 1)),
            Probe("lapsed_sessions", (namespace, NOW, 1)),
            Probe("long_ready", (namespace, NOW, patience)),
            Probe("pending_since", (namespace, NOW, self.inbox.patience_us)),
            Probe("held_tasks", (namespace, "", 1)),
        )

    async def run_once(self) -> None:
        """One tick: fire clocks, look at the inbox, reclaim, dispatch, free held tasks, renew the session."""
        found = await self._actor.store.probe(*self._probes)
        away = self._note_absence(found.now)
        if found["due"]:
            await self.watchdog.run_once(away)
        if found["pending_since"]:
            await self.inbox.run_once()
        if found.has_any("expired_claims", "lapsed_sessions") and not self.is_patient:
            await self.reclaimer.run_once(found.now)
        if found.has_any("long_ready") and self.streams is None:
            await self.dispatcher.run_once()
        if found["held_tasks"]:
            await self._free_held_tasks()
        await self.session.on_tick()
        await self._fold_tallies()

    @property
    def session_id(self) -> str:
        """The id under which other processes see this PMO."""
        return self.session.id

    async def start(self) -> None:
        """Open the session, and the streams if the settings name any."""
        await self.session.open()
        if self.streams is not None:
            await self.streams.start()

    async def run(self) -> None:
        """Tick until stopped. The relay runs beside the ticks, which never wait for it."""
        relaying = self._runtime.spawn(self.relay.run(), f"endwell-relay-{self.name}") if self.relay else None
        while not self._stop.is_set():
            await self._tick()
            await self._runtime.wait(self._stop, self._settings.pmo.watchdog_interval_seconds)
        if self.relay is not None and relaying is not None:
            self.relay.stop()
            await asyncio.wait([relaying], timeout=STOP_SECONDS)
            relaying.cancel()

    async def _tick(self) -> None:
        try:
            await self.run_once()
        except StoreError as error:
            self.failures += 1
            log.warning("%s: %s (%s)", self.name, error.message, error.code)
        except Exception:
            self.failures += 1
            log.exception("%s: a tick failed", self.name)

    @property
    def is_patient(self) -> bool:
        """Whether reclaims wait, because this PMO has been away and so may the workers have been."""
        return not self._absence.is_over

    def _note_absence(self, now: int) -> float:
        """Seconds that the store did not answer, if that cost live workers their lease; else 0."""
        away = self._absence.on_answer(now)
        if away:
            log.warning("%s was away for %.1f s; reclaims wait one heartbeat", self.name, away)
        # less than a lease is a slow tick: live workers have renewed theirs
        return away if away > self._settings.worker.lease_seconds else 0.0

    async def _free_held_tasks(self) -> None:
        now = self._runtime.clock.monotonic()
        if now - self._freed_at >= FREE_SECONDS:
            self._freed_at = now
            await free_tasks_of_settled_effects(self._actor)

    async def _fold_tallies(self) -> None:
        now = self._runtime.clock.monotonic()
        if now - self._folded_at >= FOLD_SECONDS:
            self._folded_at = now
            await self._actor.send(c.FoldTallies, idle=int(FOLD_SECONDS * SECOND))

    def stop(self) -> None:
        """`run` returns after the tick under way."""
        self._stop.set()

    async def close(self) -> None:
        """Close streams, relay and session."""
        if self.streams is not None:
            await self.streams.close()
        if self.relay is not None:
            await self.relay.close()
        await self.session.close()
