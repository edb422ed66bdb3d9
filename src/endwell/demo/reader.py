"""The demo's separate reader: a process of its own that fills the table from store, sink and journal.

It is started when everything else has ended and shares no memory with what it judges. Whether a victim
held work is read from the log: the store took tasks from the victim's session after the kill.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from endwell.app import Endwell
from endwell.demo.agents import NAMESPACE, SINK
from endwell.demo.journal import Entry, Frozen, Journal, KilledRecord, Submitted
from endwell.demo.table import Freeze, Kill, Table
from endwell.errors import NotFound
from endwell.model import facts as f
from endwell.model.moments import moment
from endwell.model.status import TERMINAL
from endwell.model.task import Task
from endwell.operate.verify import verify
from endwell.store.contract import Store
from endwell.store.log import Event

PAGE = 1000
ENDINGS = tuple(f"task.{status}" for status in sorted(TERMINAL))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was read, before anything is counted."""

    tasks: dict[str, Task]
    results: set[str]
    log: list[Event]
    sink: list[dict[str, Any]]
    journal: list[Entry]
    log_problems: int


async def read(store: Store, namespace: str, sink: Path, journal: Path) -> Found:
    """Read store and sink; nothing is written."""
    entries = Journal(journal).read()
    ids = [task_id for entry in entries if isinstance(entry, Submitted) for task_id in entry.ids]
    tasks = {task.id: task for task in await store.tasks_by_ids(namespace, ids)}
    return Found(
        tasks=tasks,
        results={task.id for task in tasks.values() if await _has_deliverable(store, task)},
        log=await _log(store, namespace),
        sink=_sink(sink),
        journal=entries,
        log_problems=(await verify(store, [namespace]))["found"],
    )


def _sink(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line) for line in lines]


async def _log(store: Store, namespace: str) -> list[Event]:
    cursor, events = "", list[Event]()
    while page := await store.events_after(namespace, cursor, PAGE):
        events += [logged.event for logged in page]
        cursor = page[-1].cursor
    return events


async def _has_deliverable(store: Store, task: Task) -> bool:
    try:
        return bool((await store.card(task.namespace, task.deliverable_card or "")).content)
    except NotFound:
        return False


def fill(found: Found) -> Table:
    """Count. Pure."""
    submitted = [i for entry in found.journal if isinstance(entry, Submitted) for i in entry.ids]
    done = _done(found)
    types = Counter(event.type for event in found.log)
    endings = Counter(event.task_id for event in found.log if event.type in ENDINGS)
    effects = Counter(line["effect"] for line in found.sink if line["outcome"] == "effect")
    return Table(
        submitted=len(submitted),
        ended=dict(Counter(task.status for task in found.tasks.values() if task.is_ended)),
        kills=[_kill(entry, found.log) for entry in found.journal if isinstance(entry, KilledRecord)],
        freezes=[_freeze(entry, found.log) for entry in found.journal if isinstance(entry, Frozen)],
        reclaims=types["task.reclaimed"],
        refused_stale=types["write.refused"],
        retries=types["task.retry_scheduled"],
        sink_calls=len(found.sink),
        effects=len(effects),
        effects_duplicated=sum(count - 1 for count in effects.values()),
        effects_settled=types["effect.settled"],
        lost=sum(_is_lost(task_id, found, done) for task_id in submitted),
        stuck=sum(not task.is_ended for task in found.tasks.values()),
        doubly_finished=sum(count > 1 for count in endings.values()),
        log_problems=found.log_problems,
    )


def _done(found: Found) -> set[str]:
    """Tasks that succeeded by an attempt which has left its line in the sink, and whose effect is there."""
    lines = {(line["task"], line["attempt"]) for line in found.sink if line["outcome"] == "done"}
    seen = {line["effect"] for line in found.sink if line["outcome"] == "effect"}
    told = {e.task_id for e in found.log if isinstance(e.fact, f.EffectIntended) and e.fact.key in seen}
    ended = (e for e in found.log if e.type == "task.succeeded")
    return {e.task_id for e in ended if (e.task_id, e.attempt_id) in lines and e.task_id in told}


def _is_lost(task_id: str, found: Found, done: set[str]) -> bool:
    """Not in the store; or ended without a deliverable; or succeeded although nobody did the work."""
    task = found.tasks.get(task_id)
    if task is None:
        return True
    if not task.is_ended:
        return False  # stuck, which is counted by itself
    return task_id not in found.results or (task.status == "succeeded" and task_id not in done)


def _taken_from(session_id: str | None, since: int, log: list[Event]) -> int:
    reclaims = (e for e in log if e.type == "task.reclaimed" and e.at >= since)
    return sum(isinstance(e.fact, f.TaskReclaimed) and e.fact.session_id == session_id for e in reclaims)


def _kill(entry: KilledRecord, log: list[Event]) -> Kill:
    held = _taken_from(entry.session_id, entry.at, log) if entry.session_id else 0
    return Kill(
        pid=entry.pid,
        signal="SIGKILL",
        at=moment(entry.at) or "",
        held_lease=held > 0,
        role=entry.role,
        name=entry.name,
        tasks_held=held,
    )


def _freeze(entry: Frozen, log: list[Event]) -> Freeze:
    claims = (e.fact for e in log if e.type == "task.claimed")
    mine = {claim.attempt_id for claim in claims if claim.session_id == entry.session_id}  # type: ignore[attr-defined]
    refused = [e for e in log if e.type == "write.refused" and e.attempt_id in mine]
    return Freeze(
        pid=entry.pid,
        at=moment(entry.at) or "",
        woken_at=moment(entry.woken_at) or "",
        name=entry.name,
        tasks_held=_taken_from(entry.session_id, entry.at, log),
        refused=len(refused),
    )


async def table(journal: Path) -> Table:
    """The table of the run that the environment names."""
    namespace = os.environ[NAMESPACE]
    async with Endwell(namespace=namespace).connect() as node:
        return fill(await read(node.store, namespace, Path(os.environ[SINK]), journal))


def main() -> None:
    """Print the table as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(asyncio.run(table(Path(sys.argv[1])))).decode() + "\n")


if __name__ == "__main__":
    main()
