"""The demo's reader: a process of its own that fills the table from store, sink and journal.

It starts when the other processes have ended, and shares no memory with them. Whether a victim held tasks is
read from the log: the store reclaimed tasks from the victim's session after the kill.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import msgspec

from endwell.app import Endwell
from endwell.demo.agents import NAMESPACE, SINK
from endwell.demo.records import Entry, Freeze, Frozen, Kill, Killed, Submitted, Table, read_lines
from endwell.errors import NotFound
from endwell.model import facts as f
from endwell.model.moments import moment
from endwell.model.status import TERMINAL
from endwell.model.task import Task
from endwell.operate.record.verify import verify
from endwell.store.contract import Store
from endwell.store.log import Event

PAGE = 1000
ENDINGS = tuple(f"task.{status}" for status in sorted(TERMINAL))


class Reader:
    """Reads everything first (`read`), then counts (`make_table`)."""

    def __init__(self, store: Store, namespace: str, sink: Path, journal: Path) -> None:
        self._store = store
        self._namespace = namespace
        self._sink = read_lines(sink)
        self._journal: list[Entry] = read_lines(journal, Entry)
        self._ids = [i for entry in self._journal if isinstance(entry, Submitted) for i in entry.ids]
        self._tasks: list[Task] = []
        self._with_deliverable: set[str] = set()
        self._log: list[Event] = []
        self._log_problems = 0

    async def read(self) -> None:
        """Read the store; nothing is written."""
        self._tasks = await self._store.tasks_by_ids(self._namespace, self._ids)
        for task in self._tasks:
            if await self._has_deliverable(task):
                self._with_deliverable.add(task.id)
        cursor = ""
        while page := await self._store.events_after(self._namespace, cursor, PAGE):
            self._log += [logged.event for logged in page]
            cursor = page[-1].cursor
        self._log_problems = (await verify(self._store, [self._namespace]))["found"]

    async def _has_deliverable(self, task: Task) -> bool:
        try:
            return bool((await self._store.card(task.namespace, task.deliverable_card or "")).content)
        except NotFound:
            return False

    def make_table(self) -> Table:
        """Count."""
        types = Counter(event.type for event in self._log)
        endings = Counter(event.task_id for event in self._log if event.type in ENDINGS)
        effects = Counter(line["effect"] for line in self._sink if line["outcome"] == "effect")
        return Table(
            submitted=len(self._ids),
            ended=dict(Counter(task.status for task in self._tasks if task.is_ended)),
            kills=[self._kill(entry) for entry in self._journal if isinstance(entry, Killed)],
            freezes=[self._freeze(entry) for entry in self._journal if isinstance(entry, Frozen)],
            reclaims=types["task.reclaimed"],
            refused_stale=types["write.refused"],
            retries=types["task.retry_scheduled"],
            sink_calls=len(self._sink),
            effects=len(effects),
            effects_duplicated=sum(count - 1 for count in effects.values()),
            effects_settled=types["effect.settled"],
            lost=self._count_lost(set(effects)),
            stuck=sum(not task.is_ended for task in self._tasks),
            doubly_finished=sum(count > 1 for count in endings.values()),
            log_problems=self._log_problems,
        )

    def _count_lost(self, effects: set[str]) -> int:
        """Tasks that the store lacks, that ended without a deliverable, or that succeeded without work.

        Work has left a line of its attempt and a line of its effect in the sink.
        """
        lines = {(line["task"], line["attempt"]) for line in self._sink if line["outcome"] == "done"}
        facts = [(event.task_id, event.fact) for event in self._log if event.type == "effect.intended"]
        with_effect = {i for i, fact in facts if isinstance(fact, f.EffectIntended) and fact.key in effects}
        ended = [(event.task_id, event.attempt_id) for event in self._log if event.type == "task.succeeded"]
        worked = {i for i, attempt in ended if (i, attempt) in lines and i in with_effect}
        hollow = [
            task
            for task in self._tasks
            if (task.is_ended and task.id not in self._with_deliverable)
            or (task.status == "succeeded" and task.id not in worked)
        ]
        return len(self._ids) - len(self._tasks) + len(hollow)

    def _reclaimed_from(self, session_id: str | None, since: int) -> int:
        facts = (event.fact for event in self._log if event.type == "task.reclaimed" and event.at >= since)
        return sum(isinstance(fact, f.TaskReclaimed) and fact.session_id == session_id for fact in facts)

    def _kill(self, entry: Killed) -> Kill:
        held = self._reclaimed_from(entry.session_id, entry.at) if entry.session_id else 0
        return Kill(
            pid=entry.pid,
            signal="SIGKILL",
            at=moment(entry.at) or "",
            held_lease=held > 0,
            role=entry.role,
            name=entry.name,
            tasks_held=held,
        )

    def _freeze(self, entry: Frozen) -> Freeze:
        claims = (event.fact for event in self._log if isinstance(event.fact, f.TaskClaimed))
        own = {claim.attempt_id for claim in claims if claim.session_id == entry.session_id}
        return Freeze(
            pid=entry.pid,
            at=moment(entry.at) or "",
            woken_at=moment(entry.woken_at) or "",
            name=entry.name,
            tasks_held=self._reclaimed_from(entry.session_id, entry.at),
            refused=sum(event.type == "write.refused" and event.attempt_id in own for event in self._log),
        )


async def read_table(journal: Path) -> Table:
    """The table of the run that the environment names."""
    namespace = os.environ[NAMESPACE]
    async with Endwell(namespace=namespace).connect() as node:
        reader = Reader(node.store, namespace, Path(os.environ[SINK]), journal)
        await reader.read()
        return reader.make_table()


if __name__ == "__main__":
    table = asyncio.run(read_table(Path(sys.argv[1])))
    sys.stdout.write(msgspec.json.encode(table).decode() + "\n")
