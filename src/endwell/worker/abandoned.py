"""What a worker that is gone has left behind: messages under its hands, and turns under its lease.

The same work may be done by any number of watchdogs, and by the PMO; none of it ends a task.
"""

from __future__ import annotations

import logging

from endwell.model import commands as c
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.store.contract import Store
from endwell.store.reclaimer import Absence, Reclaimer

log = logging.getLogger(__name__)

PAGE = 200
FOR_EVER = 1 << 60


class AbandonedWork:
    """Two parts of a worker's tick."""

    def __init__(
        self, store: Store, runtime: Runtime, settings: Settings, *, namespace: str, actor: str
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._settings = settings.worker
        self._namespace = namespace
        self._actor = actor
        self._absence = Absence(
            runtime.clock,
            interval_seconds=settings.worker.watchdog_interval_seconds,
            worker=settings.worker,
        )
        self._reclaiming = Reclaimer(
            store,
            runtime,
            self._absence,
            namespace=namespace,
            actor=actor,
            grace_seconds=settings.queue.reclaim_grace_seconds,
        )
        self.requeued = 0

    @property
    def reclaimed(self) -> int:
        """How many turns were taken back."""
        return self._reclaiming.reclaimed

    @property
    def patience(self) -> int:
        """How long a message must have been processed to be stale; for ever where that is switched off."""
        timeout = self._settings.inbox_processing_timeout_seconds
        return int(timeout * SECOND) if timeout > 0 else FOR_EVER

    async def requeue_messages(self, now: int) -> None:
        """Messages that were processed for too long by an attempt that no longer lives are pending again."""
        before = now - self.patience
        found = await self._store.stale_messages(self._namespace, before, now, PAGE)
        if not found:
            return
        log.info("%s gives %d messages back whose worker is gone", self._actor, len(found))
        requeue = c.RequeueMessages(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            message_ids=tuple(found),
            before=before,
        )
        await self._store.one(requeue)
        self.requeued += len(found)

    async def reclaim(self, now: int, *, is_needed: bool) -> None:
        """Turns whose holder's lease has lapsed go back to the queue; a worker that was away waits first.

        `now` is what the store answered at the beginning of the tick.
        """
        away = self._absence.answered(now)
        if away:
            log.warning("%s was away for %.1f s; its reclaims wait one heartbeat", self._actor, away)
        if is_needed and self._absence.is_over:
            await self._reclaiming.run_once(now)
