"""The watchdog: one indexed query finds tasks whose clock is due, and the machine's rules act on them.

Its cost grows with the number of due tasks, not with the number of tasks. A task on which a rule keeps
failing is blocked until its owner acts.
"""

from __future__ import annotations

import logging
from collections import Counter

from endwell.errors import NotFound, Refused, StoreError
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.store.actor import Actor

log = logging.getLogger(__name__)

PAGE = 200
RULE_FAILURES = 5
"""After this many failures in a row, a task is blocked for its owner."""
EXPECTED = (Refused, NotFound, StoreError)
"""Errors of a fired clock that are no defect: another process was faster, or the store is unreachable."""


class Watchdog:
    """Fires each due clock once per `run_once()`."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._failures: Counter[str] = Counter()

    async def run_once(self, away_seconds: float = 0.0) -> int:
        """Return how many clocks fired without a defect; `away_seconds` is how long no PMO had looked."""
        store, namespace = self._actor.store, self._actor.namespace
        now = await store.now()
        after, count = (-1, ""), 0
        while page := await store.due(namespace, now, after, PAGE):
            count += await self._fire_clocks([task_id for task_id, _ in page], int(away_seconds * SECOND))
            after = (page[-1][1], page[-1][0])
        return count

    async def _fire_clocks(self, task_ids: list[str], away: int) -> int:
        replies = await self._actor.commit([self._clock_fired(task_id, away) for task_id in task_ids])
        failed = {
            task_id: reply.refusal
            for task_id, reply in zip(task_ids, replies, strict=True)
            if reply.refusal is not None and not isinstance(reply.refusal, EXPECTED)
        }
        for task_id in task_ids:
            if task_id in failed:
                await self._note_failure(task_id, failed[task_id])
            else:
                self._failures.pop(task_id, None)
        return len(task_ids) - len(failed)

    def _clock_fired(self, task_id: str, away: int) -> c.ClockFired:
        return self._actor.command(c.ClockFired, task_id=task_id, fraction=self._actor.fraction(), away=away)

    async def _note_failure(self, task_id: str, error: Exception) -> None:
        self._failures[task_id] += 1
        log.error("a clock rule failed on task %s: %r", task_id, error, extra={"task_id": task_id})
        if self._failures[task_id] >= RULE_FAILURES:
            del self._failures[task_id]
            block = self._actor.command(c.Block, task_id=task_id, reason="clock_rule_failed")
            await self._actor.commit([block])
