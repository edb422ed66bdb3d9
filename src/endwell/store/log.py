"""The log: events sealed into one hash chain per task, and the check that none was changed.

An event's hash covers the previous hash, every column and the data bytes. The task's row keeps the head
(version and hash), so that a cut-off tail is found as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from endwell.errors import BadInput
from endwell.machine.evolve import fold
from endwell.model import facts
from endwell.model.commands import Command
from endwell.model.content import safe_repr
from endwell.model.task import Task

_encode_header = msgspec.json.Encoder().encode


class Event(msgspec.Struct, frozen=True, gc=False):
    """One fact in the log, in the order of the table's columns; `seq` is given by the store."""

    namespace: str
    task_id: str
    version: int
    type: str
    schema: int
    command_id: str
    causation_id: str | None
    actor: str
    at: int
    attempt_id: str | None
    epoch: int
    data: bytes
    hash: bytes

    @property
    def event_id(self) -> str:
        """Unique in the namespace, and the same on every store."""
        return f"{self.task_id}.{self.version}"

    @property
    def fact(self) -> facts.Fact:
        """The event's data as a value."""
        decoded: facts.Fact = facts.decode(self.type, self.schema, self.data)
        return decoded


class Logged(msgspec.Struct, frozen=True):
    """An event as read: with its position in the whole log and its predecessor's hash."""

    cursor: str
    seq: int
    event: Event
    prev_hash: bytes = b""


EventRow = tuple[Any, ...]
"""An event as the values of its columns, in order."""
EVENT_FIELDS = Event.__struct_fields__
LAST_POSITION = 2**63 - 1
_NUMBER = re.compile("[0-9]{1,19}")


def position_of(cursor: str) -> int:
    """The position that a cursor names; '' is the beginning. Text that is no cursor is refused."""
    if not cursor:
        return 0
    if _NUMBER.fullmatch(cursor) and int(cursor) <= LAST_POSITION:
        return int(cursor)
    raise BadInput(
        f"{safe_repr(cursor, 80)} is no cursor of this log",
        code="bad_cursor",
        hint="use the cursor of an event as this release shows it, or begin without one",
        field="after",
    )


def seal(
    task: Task, version: int, fact: facts.Fact, command: Command, at: int, by: str | None, previous: bytes
) -> EventRow:
    """The event of a fact that has just brought `task` to this version; `by` is the attempt behind it."""
    header = (
        task.namespace,
        task.id,
        version,
        fact.type,
        fact.schema,
        command.command_id,
        command.causation_id,
        command.actor,
        at,
        by,
        task.epoch,
    )
    data = facts.encode(fact)
    return header + (data, sha256(previous + _encode_header(header) + data).digest())  # noqa: RUF005 (quicker)


def _event_digest(values: tuple[object, ...], data: bytes, previous: bytes) -> bytes:
    return sha256(previous + _encode_header(values) + data).digest()


def hash_of(event: Event, previous: bytes) -> bytes:
    """The hash that the event must have after `previous`."""
    values = msgspec.structs.astuple(event)
    return _event_digest(values[:-2], event.data, previous)


def is_continued(task: Task | None, events: Iterable[Event]) -> bool:
    """Whether these events continue the task's log, each sealed over the one before it."""
    version, head = (0, b"") if task is None else (task.version, task.head_hash)
    for event in events:
        if event.version != version + 1 or hash_of(event, head) != event.hash:
            return False
        version, head = event.version, event.hash
    return True


def effect_keys(rows: Iterable[Sequence[Any]]) -> set[str]:
    """The keys of the effects in events, given as rows of their table."""
    events = (Event(*row) for row in rows)
    return {getattr(event.fact, "key", "") for event in events if event.type.startswith("effect.")}


class TurnRecord(msgspec.Struct, frozen=True):
    """One assignment of a task that has ended."""

    id: str
    number: int
    attempt_id: str | None
    session_id: str | None
    epoch: int
    outcome: str
    error: str | None
    ended_at: int


def turns_in(events: Iterable[Event]) -> list[TurnRecord]:
    """The turns of a task that have ended, in order; they have no table, so ending a turn writes no row.

    The task before the end says which attempt held the turn.
    """
    task: Task | None = None
    found: list[TurnRecord] = []
    for event in events:
        fact: facts.Fact = event.fact
        if isinstance(fact, facts.TurnEnded) and task is not None:
            held = (task.attempt_id, task.session_id, fact.epoch)
            found.append(
                TurnRecord(fact.turn_id, task.turn_number, *held, fact.outcome, fact.error, event.at)
            )
        task = fold(task, fact, event.at, event.namespace, event.task_id)
    return found


class Problem(msgspec.Struct, frozen=True):
    """A defect in the log of one task; `about` names the card or row, if it concerns one."""

    task_id: str
    version: int
    kind: str
    about: str = ""


def check_chain(task_id: str, events: Iterable[Event], head: tuple[int, bytes] | None) -> Iterator[Problem]:
    """Find a changed, missing, reordered or cut-off event in one task's log, read in version order.

    `head` is the last event according to the task's row; None means that the row is missing.
    """
    previous, expected = b"", 1
    for event in events:
        if event.version != expected:
            yield Problem(task_id, expected, "missing" if event.version > expected else "duplicated")
            previous = b"" if event.version > expected else previous
            expected = event.version
        elif hash_of(event, previous) != event.hash:
            yield Problem(task_id, event.version, "changed")
        previous, expected = event.hash, expected + 1
    yield from _check_head(task_id, expected - 1, previous, head)


def _check_head(task_id: str, version: int, last: bytes, head: tuple[int, bytes] | None) -> Iterator[Problem]:
    if head is None:
        yield Problem(task_id, version, "task_missing")
    elif head[0] > version:
        yield Problem(task_id, version + 1, "cut_off")
    elif head[0] < version:
        yield Problem(task_id, head[0] + 1, "not_in_task")
    elif head[1] != last:
        yield Problem(task_id, version, "changed")
