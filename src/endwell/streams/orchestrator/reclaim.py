"""Reclaiming entries that no worker touched for VISIBILITY_TIMEOUT_S, as the store judges them.

The entry of a live attempt goes back to its holder. From an attempt whose lease has lapsed the turn is taken,
and the log says from whom, by whom and by which entry. An entry that offers nothing any more is removed. A
reclaimed turn gets a new entry when it is dispatched again, so a late acknowledgement of the old one by the
worker that lost it has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from endwell.model import commands as c
from endwell.model.content import clean_text
from endwell.model.moments import moment
from endwell.model.session import is_foreign
from endwell.model.status import DISPATCHED, RUNNING
from endwell.model.task import Task
from endwell.runtime.base import Runtime
from endwell.store.actor import Actor
from endwell.store.reclaimer import DECIDED_TOO_LATE, Absence, evidence_about
from endwell.streams.entries import LONGEST_NAME, Delivery, Malformed, read_task
from endwell.streams.foreign_keys import Grant
from endwell.streams.pending import Overdue
from endwell.streams.task_streams import TaskStreams


class StreamReclaimer:
    """Takes overdue entries, and the turns of holders that are gone."""

    def __init__(
        self,
        actor: Actor,
        runtime: Runtime,
        streams: TaskStreams,
        consumer: str,
        *,
        visibility_seconds: float,
        absence: Absence | None = None,
    ) -> None:
        self._actor = actor
        self._store = actor.store
        self._runtime = runtime
        self._streams = streams
        self._consumer = consumer
        self._absence = absence
        self._idle_ms = int(visibility_seconds * 1000)
        self.reclaimed = 0

    async def run_once(self) -> int:
        """Handle every overdue entry; how many turns were reclaimed."""
        if self._absence is not None and self._absence.is_blind:
            return 0
        overdue = await self._streams.tasks.pending.take_overdue(self._consumer, self._idle_ms)
        if not overdue:
            return 0
        before = self.reclaimed
        read = [(each, read_task(each.message_id, each.raw)) for each in overdue]
        bad = [entry for each, entry in read if isinstance(entry, Malformed) and each.raw is not None]
        await self._streams.bury_entries(bad, moment(self._runtime.clock.now_us()))
        deleted = [each.message_id for each, _ in read if each.raw is None]
        good = [(each, entry) for each, entry in read if isinstance(entry, Delivery)]
        served = await self._judge_entries(good)
        await self._streams.tasks.remove([*deleted, *served])
        return self.reclaimed - before

    async def _judge_entries(self, entries: Sequence[tuple[Overdue, Delivery]]) -> list[str]:
        """Give entries back to live holders; returns the other ones, which have served."""
        ids = [entry.task_id for _, entry in entries]
        tasks = {task.id: task for task in await self._store.tasks_by_ids(self._actor.namespace, ids)}
        served: list[str] = []
        for each, entry in entries:
            task = tasks.get(entry.task_id)
            if task is not None and _is_current(task, entry) and await self._is_alive(task, each):
                holder = each.old_consumer or self._consumer
                await self._streams.tasks.claim(holder, (each.message_id,))
            else:
                served.append(each.message_id)
        return served

    async def _is_alive(self, task: Task, overdue: Overdue) -> bool:
        """Reclaim the turn; True if its holder still has it."""
        if task.status == DISPATCHED:
            return False  # no worker claimed it, and its offer will be published again
        session = await self._store.session(self._actor.namespace, task.session_id or "")
        now = await self._store.now()  # asked for each entry: the page may have waited for the store
        holder = _printable_name(overdue.old_consumer) or (session.name if session is not None else "")
        command = self._actor.command(
            c.Reclaim,
            task_id=task.id,
            attempt_id=task.attempt_id or "",
            session_id=task.session_id or "",
            # A foreign worker's lease is its entry; one of ours has its lease in the store.
            reason="visibility_timeout" if is_foreign(session) else "lease_lapsed",
            old_consumer=holder,
            new_consumer=self._consumer,
            message_id=overdue.message_id,
            evidence=evidence_about(session, self._runtime, self._absence, now),
        )
        (reply,) = await self._actor.commit((command,))
        if reply.refusal is not None:
            return reply.refusal.code in ("lease_holds", DECIDED_TOO_LATE)
        self.reclaimed += 1
        lost = Grant(task_id=task.id, turn_id=task.turn_id or "", epoch=task.epoch)
        await self._streams.grants.revoke([lost])
        return False


def _printable_name(consumer: bytes) -> str:
    """A consumer's name as the log can keep it: any client of the server may have chosen it."""
    return clean_text(consumer.decode(errors="replace"), LONGEST_NAME)


def _is_current(task: Task, entry: Delivery) -> bool:
    """Whether the turn came to its holder by this very entry."""
    is_same = (task.turn_id, task.epoch) == (entry.turn_id, entry.epoch)
    return is_same and task.status in (RUNNING, DISPATCHED)
