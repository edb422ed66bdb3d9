"""Writes what a batch comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw
from msgspec.structs import astuple

from endwell.model.task import FIXED_FIELDS, Task
from endwell.store.rows import Writes
from endwell.store.sqlite.statements import QUERIES, GroupedInsert

_FIXED: Final = len(FIXED_FIELDS)
# rows are added before they are closed, in any order of the commands
SIDE_QUERIES: Final = (
    "add_inbox_turn",
    "add_dead_letter",
    "add_approval",
    "add_wait",
    "add_resume",
    "mark_inbox",
    "requeue_message",
    "close_dead_letter",
    "vote_approval",
    "close_approval",
    "answer_wait",
    "drop_waits",
    "doubt_effect",
    "mark_restored",
    "close_message",
    "take_resume",
    "count_delivery",
    "reset_deliveries",
    "close_resume",
    "requeue_resumes",
    "drop_rules",
    "add_rule",
    "drop_expired_agents",
)


class LostRaceError(Exception):
    """Another process has changed a row that was taken to be as it was cached."""


_ADD_TASK: Final = GroupedInsert(QUERIES["add_task"])
_MOVE_TASK: Final = GroupedInsert(QUERIES["move_tasks"], single=QUERIES["move_task"])
_ADD_EVENT: Final = GroupedInsert(QUERIES["add_event"])
_ADD_CARD: Final = GroupedInsert(QUERIES["add_card"])


def write(connection: apsw.Connection, writes: Writes) -> None:
    """Write all rows of a batch, within a transaction."""
    if writes.is_empty:
        return
    _ADD_TASK.run(connection, [astuple(task) for task in writes.created])
    _move_tasks(connection, writes.moved)
    _ADD_EVENT.run(connection, writes.events)
    _ADD_CARD.run(connection, [astuple(card) for card in writes.cards])
    small_tables: tuple[tuple[str, Sequence[tuple[Any, ...]]], ...] = (
        ("set_slot", writes.slots),
        ("add_effect", [astuple(effect) for effect in writes.effects_added]),
        ("move_effect", [astuple(effect) for effect in writes.effects_moved]),
        ("add_message", [astuple(message) for message in writes.messages]),
        ("save_session", [astuple(session) for session in writes.sessions]),
        ("save_cursor", [astuple(cursor) for cursor in writes.cursors]),
        ("add_tally", [(name, *counts, writes.now) for name, counts in writes.tallies.items()]),
        *((name, writes.side.get(name, ())) for name in SIDE_QUERIES if writes.side),
    )
    for name, rows in small_tables:
        if rows:
            connection.executemany(QUERIES[name], rows)
    for namespace, at, spec in writes.agents:
        connection.execute(QUERIES["save_agent"], (namespace, at, *astuple(spec)))
        slots = [(namespace, spec.name, slot) for slot in range(spec.concurrency or 0)]
        connection.executemany(QUERIES["add_slot"], slots)


def _move_tasks(connection: apsw.Connection, moved: Sequence[tuple[Task, int]]) -> None:
    if not moved:
        return
    before = connection.total_changes()
    _MOVE_TASK.run(connection, [_moved_row(task, seen) for task, seen in moved])
    if connection.total_changes() - before != len(moved):
        raise LostRaceError


def _moved_row(task: Task, seen: int) -> tuple[Any, ...]:
    values = astuple(task)
    return (task.namespace, task.id, seen, *values[_FIXED:])
