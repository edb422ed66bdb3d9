"""What workers that are gone leave behind: messages being processed, and turns under a lapsed lease.

Any number of watchdogs, and the PMO, may do this work at the same time; none of it ends a task.
"""

from __future__ import annotations

import logging

from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.runtime.base import Runtime
from endwell.settings import Settings
from endwell.store.actor import Actor
from endwell.store.reclaimer import Absence, Reclaimer

log = logging.getLogger(__name__)

PAGE = 200
FOR_EVER = 1 << 60


class AbandonedWork:
    """Requeues messages and reclaims turns: two parts of a worker's tick."""

    def __init__(self, actor: Actor, runtime: Runtime, settings: Settings) -> None:
        self._actor = actor
        timeout = settings.worker.inbox_processing_timeout_seconds
        self.patience = int(timeout * SECOND) if timeout > 0 else FOR_EVER
        """Microseconds after which a message that is still being processed counts as stale."""
        self._absence = Absence(
            runtime.clock,
            interval_seconds=settings.worker.watchdog_interval_seconds,
            worker=settings.worker,
        )
        grace = settings.queue.reclaim_grace_seconds
        self._reclaimer = Reclaimer(actor, runtime, self._absence, grace_seconds=grace)
        self.requeued = 0

    @property
    def reclaimed_count(self) -> int:
        return self._reclaimer.reclaimed

    async def requeue_messages(self, now: int) -> None:
        """Make messages pending again that an attempt processed for too long and is not live any more."""
        before = now - self.patience
        found = await self._actor.store.stale_messages(self._actor.namespace, before, now, PAGE)
        if not found:
            return
        log.info("%s requeues %d messages whose worker is gone", self._actor.name, len(found))
        await self._actor.send(c.RequeueMessages, message_ids=tuple(found), before=before)
        self.requeued += len(found)

    async def reclaim(self, now: int, *, is_needed: bool) -> None:
        """Reclaim turns whose lease has lapsed; after an absence of this worker, one heartbeat later.

        `now` is the store's time at the beginning of the tick.
        """
        away = self._absence.on_answer(now)
        if away:
            log.warning("%s was away for %.1f s; its reclaims wait one heartbeat", self._actor.name, away)
        if is_needed and self._absence.is_over:
            await self._reclaimer.run_once(now)
