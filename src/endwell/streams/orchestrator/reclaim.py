"""Reclaiming on the stream: entries that nobody touched for VISIBILITY_TIMEOUT_S, judged by the store.

The entry of a live attempt goes back to its holder; of one whose lease has lapsed the turn is taken, and the
log says from whom, by whom and which entry it was. An entry that stands for nothing any more is acknowledged.
A reclaimed turn gets a new entry when it is dispatched again, so a late acknowledgement of the old one by
somebody who lost it means nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from endwell.model import commands as c
from endwell.model.content import clean_text
from endwell.model.session import is_foreign
from endwell.model.status import DISPATCHED, RUNNING
from endwell.model.task import Task
from endwell.runtime.base import Runtime
from endwell.store.contract import Store
from endwell.store.reclaimer import DECIDED_TOO_LATE, Absence, evidence_about
from endwell.streams.commands import Grant, StreamOrchestrator
from endwell.streams.contract import Delivery
from endwell.streams.entries import LONGEST_NAME, Malformed, read_task
from endwell.streams.pending import Overdue

log = logging.getLogger(__name__)


class StreamReclaimer:
    """`run_once()` sees to everything that is overdue."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        stream: StreamOrchestrator,
        *,
        namespace: str,
        actor: str,
        visibility_seconds: float,
        absence: Absence | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._stream = stream
        self._namespace = namespace
        self._actor = actor
        self._absence = absence
        self._idle_ms = int(visibility_seconds * 1000)
        self.reclaimed = 0

    async def run_once(self, failed_at: str) -> int:
        """How many turns were taken back."""
        if self._absence is not None and self._absence.is_blind:
            return 0
        overdue = await self._stream.tasks.take_overdue(self._stream.consumer, self._idle_ms)
        if not overdue:
            return 0
        before = self.reclaimed
        read = [(each, read_task(each.message_id, each.raw)) for each in overdue]
        bad = [entry for each, entry in read if isinstance(entry, Malformed) and each.raw is not None]
        await self._stream.bury(bad, failed_at)
        gone = [each.message_id for each, _ in read if each.raw is None]
        good = [(each, entry) for each, entry in read if isinstance(entry, Delivery)]
        done = await self._judged(good)
        await self._stream.clear([*gone, *done])
        return self.reclaimed - before

    async def _judged(self, entries: Sequence[tuple[Overdue, Delivery]]) -> list[str]:
        """Those that have served; the others went back to their holders."""
        ids = [entry.task_id for _, entry in entries]
        tasks = {task.id: task for task in await self._store.tasks_by_ids(self._namespace, ids)}
        done: list[str] = []
        for each, entry in entries:
            task = tasks.get(entry.task_id)
            if task is not None and _is_of(task, entry) and await self._is_alive(task, each):
                await self._stream.give_back(each.old_consumer or self._stream.consumer, (each.message_id,))
            else:
                done.append(each.message_id)
        return done

    async def _is_alive(self, task: Task, overdue: Overdue) -> bool:
        """Whether its holder has it nevertheless; if not, the turn is taken from it."""
        if task.status == DISPATCHED:
            return False  # nobody claimed it; as an offer that stands it is put again
        session = await self._store.session(self._namespace, task.session_id or "")
        now = await self._store.now()  # of a long page each entry is judged by its own wait for the store
        command = c.Reclaim(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task.id,
            attempt_id=task.attempt_id or "",
            session_id=task.session_id or "",
            # A foreign worker's lease is its entry; one of ours has its lease in the store.
            reason="visibility_timeout" if is_foreign(session) else "lease_lapsed",
            old_consumer=_shown(overdue.old_consumer) or (session.name if session is not None else ""),
            new_consumer=self._stream.consumer,
            message_id=overdue.message_id,
            evidence=evidence_about(session, self._runtime, self._absence, now),
        )
        (reply,) = await self._store.commit((command,))
        if reply.refusal is None:
            self.reclaimed += 1
            lost = Grant(task_id=task.id, turn_id=task.turn_id or "", epoch=task.epoch)
            await self._stream.revoke([lost])
            return False
        return reply.refusal.code in ("lease_holds", DECIDED_TOO_LATE)


def _shown(consumer: bytes) -> str:
    """A consumer's name as the log can keep it: whoever reads the stream chose it."""
    return clean_text(consumer.decode(errors="replace"), LONGEST_NAME)


def _is_of(task: Task, entry: Delivery) -> bool:
    """Whether it is this very entry by which the turn came to its holder."""
    same = (task.turn_id, task.epoch) == (entry.turn_id, entry.epoch)
    return same and task.status in (RUNNING, DISPATCHED)
