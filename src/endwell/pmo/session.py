"""The PMO's session: shows that this process is alive, and when it last finished a tick."""

from __future__ import annotations

import logging
import math

from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.policy.limits import LATE_INTERVALS
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.store.actor import Actor

log = logging.getLogger(__name__)

EARLY_SECONDS = 0.5
"""A renewal that is due this soon is made now, not a whole tick later."""


class PmoSession:
    """A row with a lease, renewed at the end of ticks."""

    def __init__(self, actor: Actor, runtime: Runtime, settings: Settings) -> None:
        self._actor = actor
        self._runtime = runtime
        tick, worker = settings.pmo.watchdog_interval_seconds, settings.worker
        self._lease = int(max(LATE_INTERVALS * tick, worker.lease_seconds) * SECOND)
        self._renew_after = min(worker.heartbeat_seconds, 2 * tick) - EARLY_SECONDS
        self._renewed_at = -math.inf
        self.id = actor.new_id()

    async def open(self) -> None:
        """Store the session; other processes see a live PMO from now on."""
        await self._actor.send(
            c.OpenSession,
            session_id=self.id,
            kind="pmo",
            name=self._actor.name,
            host=self._runtime.host_name(),
            pid=self._runtime.process_id(),
            agents=(),
            concurrency=0,
            lease=self._lease,
            process=self._runtime.process_mark(),
        )

    async def on_tick(self) -> None:
        """Renew the lease if it is time. A PMO that never comes to the end of a tick counts as dead."""
        now = self._runtime.clock.monotonic()
        if now - self._renewed_at < self._renew_after:
            return
        beat = self._actor.command(c.Heartbeat, session_id=self.id, lease=self._lease, tick_age=0)
        (reply,) = await self._actor.commit([beat])
        if reply.refusal is not None:
            self.id = self._actor.new_id()
            await self.open()
        self._renewed_at = now

    async def close(self) -> None:
        """End the session; if the store is unreachable, its lease lapses."""
        try:
            await self._actor.commit([self._actor.command(c.CloseSession, session_id=self.id)])
        except StoreError as error:
            log.warning("%s could not close its session; its lease will lapse: %s", self._actor.name, error)
