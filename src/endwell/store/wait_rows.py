"""Waits with rows of their own: which a batch reads, how it changes them, and what a decision is shown.

A decision is never shown all of them: an answer concerns one, a signal the first that waits for it, and a
clock the next ones by deadline. So the cost of a decision does not grow with their number.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from endwell.machine.evolve_rows import WaitFact, evolve_wait, settled_calls
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import call_id
from endwell.model.message import Message, report_of
from endwell.model.task import Task, has_wait_rows, waits_of
from endwell.model.wait import Wait
from endwell.store.rows import Rows, TaskKey, WaitKey, Wanted

MOST_OVERDUE: Final = 500
"""At most this many waits are shown to one decision of a clock; those behind them keep the clock due."""


class WantedWaits(msgspec.Struct):
    """Rows of `turn_waiting_tools` that a batch needs; known once its tasks and messages have been read.

    `signals` counts the commands of the batch that may each settle one wait for the signal.
    """

    calls: set[WaitKey] = msgspec.field(default_factory=set)
    signals: Counter[WaitKey] = msgspec.field(default_factory=Counter)
    next_of: set[TaskKey] = msgspec.field(default_factory=set)


def wanted_waits(want: Wanted, rows: Rows) -> WantedWaits:
    """The waits to read, of tasks whose waits have rows; most batches name no such task."""
    found = WantedWaits()
    if not (want.answers or want.signals or want.messages or want.calls):
        return found
    answers, signals = set(want.answers), list(want.signals)
    for key, task_key in want.messages.items():
        message = rows.messages.get(key)
        if message is None:
            continue
        if message.message_type == "signal":
            signals.append((task_key, report_of(message).name or ""))
        else:
            answers.add((task_key, message.correlation_id))
    for task_key, call in answers:
        if (turn := _turn_of_rows(rows.tasks.get(task_key))) is not None:
            found.calls.add((*turn, call))
    for task_key, name in signals:
        if (turn := _turn_of_rows(rows.tasks.get(task_key))) is not None:
            found.signals[(*turn, name)] += 1
    found.next_of = {turn for key in want.calls if (turn := _turn_of_rows(rows.tasks.get(key))) is not None}
    return found


def _turn_of_rows(task: Task | None) -> TaskKey | None:
    """The task's turn, if its waits have rows."""
    if task is None or task.turn_id is None or not has_wait_rows(task):
        return None
    return (task.namespace, task.turn_id)


def wanted_calls(want: Wanted, rows: Rows) -> dict[TaskKey, list[str]]:
    """The `tool.call` cards of the waits that a clock is shown."""
    found: dict[TaskKey, list[str]] = {}
    for key in want.calls:
        task = rows.tasks.get(key)
        if task is None or task.status != s.SUSPENDED:
            continue
        shown = rows.next_waits.get((task.namespace, task.turn_id or ""), ())
        calls = [call_id(w.tool_call_id) for w in (*waits_of(task), *shown) if w.kind == "tool" and w.is_open]
        if calls:
            found[key] = calls
    return found


class Waits:
    """Rows of waits while a batch is decided: what was read, and their current state."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._current = _read_waits(rows)  # every wait that was read or added
        self._added: dict[TaskKey, list[Wait]] = {}

    def fold(self, task: Task, fact: f.WaitsAdded | WaitFact) -> None:
        """Apply a fact to the waits of the task's turn."""
        turn = (task.namespace, task.turn_id or "")
        if isinstance(fact, f.WaitsAdded):
            self._added.setdefault(turn, []).extend(fact.waits)
            self._current.update({(*turn, wait.tool_call_id): wait for wait in fact.waits})
            return
        for call in settled_calls(fact):
            known = self._current.get((*turn, call))
            if known is not None:
                self._current[(*turn, call)] = evolve_wait(known, fact)

    def of_command(self, task: Task | None, command: c.TaskCommand) -> tuple[Wait, ...]:
        """The wait that an answer, a signal or a decision on an approval may settle."""
        turn = _turn_of_rows(task)
        if turn is None:
            return ()
        match command:
            case c.Signal(name=name):
                return self._of_signal(turn, name)
            case (
                c.Answer(tool_call_id=call)
                | c.Approve(approval_id=str(call))
                | c.Reject(approval_id=str(call))
            ):
                return self._of_call(turn, call)
        return ()

    def of_message(self, task: Task | None, message: Message) -> tuple[Wait, ...]:
        """The wait that a message may settle."""
        turn = _turn_of_rows(task)
        if turn is None:
            return ()
        if message.message_type == "signal":
            return self._of_signal(turn, report_of(message).name or "")
        return self._of_call(turn, message.correlation_id)

    def _of_call(self, turn: TaskKey, call: str) -> tuple[Wait, ...]:
        wait = self._current.get((*turn, call))
        return () if wait is None else (wait,)

    def _of_signal(self, turn: TaskKey, name: str) -> tuple[Wait, ...]:
        """The first open wait for the signal."""
        added = (w for w in self._added.get(turn, ()) if w.kind == "signal" and w.name == name)
        for wait in (*self._rows.signals.get((*turn, name), ()), *added):
            now = self._current[(*turn, wait.tool_call_id)]
            if now.is_open:
                return (now,)
        return ()

    def next_ones(self, task: Task | None) -> tuple[tuple[Wait, ...], int | None]:
        """The next unreported waits by deadline, and the deadline of the first wait behind them."""
        turn = _turn_of_rows(task)
        if turn is None:
            return (), None
        read = self._rows.next_waits.get(turn, [])
        known = dict.fromkeys(w.tool_call_id for w in (*read[:MOST_OVERDUE], *self._added.get(turn, ())))
        waits = (self._current[(*turn, call)] for call in known)
        shown = tuple(wait for wait in waits if wait.is_open and not wait.is_reported)
        return shown, read[MOST_OVERDUE].deadline if len(read) > MOST_OVERDUE else None


def _read_waits(rows: Rows) -> dict[WaitKey, Wait]:
    """All waits that were read, by their calls: a decision may settle any that it is shown."""
    found = dict(rows.waits)
    for (namespace, turn_id, _), waits in rows.signals.items():
        found.update({(namespace, turn_id, wait.tool_call_id): wait for wait in waits})
    for turn, waits in rows.next_waits.items():
        found.update({(*turn, wait.tool_call_id): wait for wait in waits})
    return found
