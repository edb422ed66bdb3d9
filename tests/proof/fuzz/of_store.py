"""Fuzzing decoders of stored data: logs and their chain, packed columns, cursors, damaged files."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from endwell.errors import EndwellError, Refused
from endwell.model import facts
from endwell.model.inside import family_of, inside_of
from endwell.model.message import Message, report_of
from endwell.model.task import Task, waits_of
from endwell.operate.record.task_check import log_problems
from endwell.operate.transfer.import_check import check
from endwell.policy.approval import options_of
from endwell.policy.retry import RetryPolicy, unpack_policy
from endwell.runtime import SeededIds
from endwell.store.log import Event, position_of
from tests.proof.fuzz.campaign import Target
from tests.proof.fuzz.mutate import Maker, one_of
from tests.proof.fuzz.of_content import told
from tests.store.contract.test_random_runs import Monkey
from tests.store.world import SqliteDatabase, World

EXPORT: Final = Path(__file__).with_name("export.jsonl")
"""An export of this release with five tasks of every kind; later releases must import it."""


class History(msgspec.Struct, frozen=True):
    """A task's row and its whole log."""

    row: Task
    events: list[Event]


_histories: Final = msgspec.json.Decoder(History)


def histories(home: Path) -> list[History]:
    """Read what a fixed random run on a real store has left behind."""
    return asyncio.run(_histories_of(home / "store.db"))


async def _histories_of(path: Path) -> list[History]:
    database = SqliteDatabase(path)
    database.runtime = replace(database.runtime, ids=SeededIds(7))
    world = World(database)
    await world.open()
    await world.open_session("s1", lease=900)
    await world.open_session("s2", lease=900)
    await Monkey(world, [world.store], 7).run(50)
    ids = await world.store.event_tasks("default", "", 1_000)
    rows = [await world.store.task("default", task_id) for task_id in ids]
    found = [History(row, await world.store.events_of_task("default", row.id)) for row in rows]
    await world.close()
    return sorted(found, key=lambda history: history.row.version)[-60:]


def _log(home: Path) -> Target:
    """Check that a log is accepted only unchanged; every change is found, and reported by kind."""
    known = histories(home)
    written = {history.row.id: history for history in known}
    valid = [msgspec.json.encode(history) for history in known]

    def take(data: bytes) -> bool:
        try:
            given = _histories.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        problems = log_problems(given.row.id, given.row, given.events)
        is_as_written = given == written.get(given.row.id)
        assert bool(problems) != is_as_written, problems
        return is_as_written

    return Target(name="log", share=20, valid=one_of(valid), take=take)


def _facts(home: Path) -> Target:
    """Decode type, schema and data of one event."""
    seen = {
        event.type + "\n" + event.data.decode() for history in histories(home) for event in history.events
    }
    valid = [
        text.encode() for text in sorted(seen, key=lambda text: (text.partition("\n")[0], len(text), text))
    ]

    def take(data: bytes) -> bool:
        kind, _, rest = data.partition(b"\n")
        try:
            fact = facts.decode(kind.decode("utf-8", "replace"), 1, rest)
        except EndwellError as refusal:
            return told(refusal)
        assert facts.decode(fact.type, 1, facts.encode(fact)) == fact
        return True

    return Target(name="fact", share=70, valid=one_of(valid), take=take)


def _export(data: bytes) -> bool:
    """Decode the lines of an export; a refusal names the number of the line."""
    try:
        check(data.splitlines(keepends=True))
    except EndwellError as refusal:
        if not (refusal.field or "").startswith("line "):
            raise
        return told(refusal)
    return True


_COLUMNS: Final = {
    b"waits": b'[{"tool_call_id":"t.s.1","kind":"tool","deadline":5,"name":"look"}]',
    b"inside": b'{"run":2,"steps":3,"intents":["pay"],"asked":[{"id":"a","shown_hash":"h","by":["ada"]}]}',
    b"family": b'{"parent_agent":"boss","depth":2,"held_keys":["a/b"],"on_parent_end":"leave"}',
    b"retry": b'{"max_retries":2,"delays":[1.0,5.5]}',
    b"options": b"{}",
    b"report": b'{"status":"failed","error":{"code":"x"},"name":"go"}',
}


def _read_column(name: bytes, text: str) -> Any:
    task = Task(namespace="n", id="t", agent="a", waits=text, inside=text, family=text)
    if name == b"waits":
        return waits_of(task)
    if name == b"inside":
        return inside_of(task)
    if name == b"family":
        return family_of(task)
    if name == b"retry":
        return unpack_policy(text, RetryPolicy())
    if name == b"options":
        return options_of(text)
    message = Message("n", "m", "a", None, "signal", "c", None, "t", None, None, None, text, "pending", 0)
    return report_of(message)


def _column(data: bytes) -> bool:
    name, _, rest = data.partition(b"=")
    try:
        _read_column(name, rest.decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):  # a damaged row: callers handle both errors alike
        return False
    return True


_CURSORS: Final = (b"0", b"17", b"8124", b"9223372036854775807")


def _cursor(data: bytes) -> bool:
    text = data.decode("utf-8", "surrogateescape")
    try:
        position_of(text)
    except Refused as refusal:
        told(refusal)
        return False
    return True


def _columns(dice: Random) -> bytes:
    name = dice.choice(list(_COLUMNS))
    return name + b"=" + _COLUMNS[name]


_any_column: Maker = _columns


def targets(home: Path) -> tuple[Target, ...]:
    return (
        _log(home),
        _facts(home),
        Target(name="export", share=10, valid=one_of([EXPORT.read_bytes()]), take=_export),
        Target(name="cursor", share=40, valid=one_of(_CURSORS), take=_cursor),
        Target(name="column", share=60, valid=_any_column, take=_column),
    )
