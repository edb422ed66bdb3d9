"""The watchdog: one indexed query for what is due, and the machine's rules for what then happens.

Its cost grows with what is due, not with how many tasks there are. A task on which a rule keeps
failing is put into a person's hands, so that it holds nobody up.
"""

from __future__ import annotations

import logging
from collections import Counter

from endwell.errors import NotFound, Refused, StoreError
from endwell.model import commands as c
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.store.contract import Store

log = logging.getLogger(__name__)

PAGE = 200
RULE_FAILURES = 5
"""How often in a row a rule may fail on one task before a person must look at it."""
NO_DEFECT = (Refused, NotFound, StoreError)
"""What a clock may meet without anything being wrong: somebody was faster, or the store is away."""


class Watchdog:
    """`run_once()` looks at every due task once."""

    def __init__(self, store: Store, runtime: Runtime, *, namespace: str, actor: str) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._actor = actor
        self._failures: Counter[str] = Counter()
        self._away = 0
        self.fired = 0

    async def run_once(self, away_seconds: float = 0.0) -> int:
        """How many clocks were acted on; `away_seconds` is for how long nobody has looked."""
        self._away = int(away_seconds * SECOND)
        now = await self._store.now()
        after, count = (-1, ""), 0
        while page := await self._store.due(self._namespace, now, after, PAGE):
            count += await self._fire([task_id for task_id, _ in page])
            after = (page[-1][1], page[-1][0])
        self.fired += count
        return count

    async def _fire(self, task_ids: list[str]) -> int:
        commands = [self._clock_fired(task_id) for task_id in task_ids]
        replies = await self._store.commit(commands)
        failed = [
            (task_id, reply.refusal)
            for task_id, reply in zip(task_ids, replies, strict=True)
            if reply.refusal is not None and not isinstance(reply.refusal, NO_DEFECT)
        ]
        for task_id, error in failed:
            await self._note_failure(task_id, error)
        for task_id in set(task_ids) - {task_id for task_id, _ in failed}:
            self._failures.pop(task_id, None)
        return len(task_ids) - len(failed)

    async def _note_failure(self, task_id: str, error: Exception) -> None:
        self._failures[task_id] += 1
        log.error("a clock rule failed on task %s: %r", task_id, error, extra={"task_id": task_id})
        if self._failures[task_id] >= RULE_FAILURES:
            del self._failures[task_id]
            await self._store.commit((self._block(task_id),))

    def _clock_fired(self, task_id: str) -> c.ClockFired:
        return c.ClockFired(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_id,
            fraction=self._runtime.ids.fraction(),
            away=self._away,
        )

    def _block(self, task_id: str) -> c.Block:
        return c.Block(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_id,
            reason="clock_rule_failed",
        )
