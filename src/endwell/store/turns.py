"""The turns of a task, read from its log: they have no table, so ending a turn writes no row."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from endwell.machine.evolve import fold
from endwell.model import facts as f
from endwell.model.task import Task
from endwell.store.log import Event


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
    """The turns that have ended, in order; the task before the end says which attempt held the turn."""
    task: Task | None = None
    found: list[TurnRecord] = []
    for event in events:
        fact: f.Fact = event.fact
        if isinstance(fact, f.TurnEnded) and task is not None:
            held = (task.attempt_id, task.session_id, fact.epoch)
            found.append(
                TurnRecord(fact.turn_id, task.turn_number, *held, fact.outcome, fact.error, event.at)
            )
        task = fold(task, fact, event.at, event.namespace, event.task_id)
    return found
