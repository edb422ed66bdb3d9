"""Under which name a turn is offered: by its turn and epoch, which no other offer of the task ever has.

Both follow from the task's row alone. So a turn can be named before its dispatch is written: whoever comes
with that name is granted it once, and only while nothing else has happened to the task.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from endwell.model.status import DISPATCHED, QUEUED
from endwell.model.task import Task


class WaitingTask(Protocol):
    """As much of a task's row as the name of its next turn takes."""

    @property
    def id(self) -> str: ...
    @property
    def turn_id(self) -> str | None: ...
    @property
    def turn_number(self) -> int: ...
    @property
    def epoch(self) -> int: ...


class OfferName(NamedTuple):
    """A turn with its number and epoch."""

    turn_id: str
    number: int
    epoch: int

    @property
    def key(self) -> tuple[str, int]:
        """Turn and epoch: which offer it is."""
        return self.turn_id, self.epoch


def next_turn(task: WaitingTask) -> OfferName:
    """As the next dispatch of a queued task names it: a turn that goes on stays the same, in a new epoch."""
    if task.turn_id is not None:
        return OfferName(task.turn_id, task.turn_number, task.epoch + 1)
    number = task.turn_number + 1
    return OfferName(f"{task.id}.t{number}", number, task.epoch + 1)


def offered_turn(task: Task) -> OfferName | None:
    """By which name it can be taken now: as it was dispatched, or as it would be. None if it cannot."""
    if task.status == DISPATCHED:
        return OfferName(task.turn_id or "", task.turn_number, task.epoch)
    return next_turn(task) if task.status == QUEUED else None
