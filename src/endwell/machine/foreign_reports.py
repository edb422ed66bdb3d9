"""What a foreign worker may say about a turn: only about one that its own session holds. Pure."""

from __future__ import annotations

from endwell.errors import WrongStatus
from endwell.model.commands import ForeignReport
from endwell.model.session import Session, is_foreign
from endwell.model.task import Task


def refuse_foreign_report(
    task: Task | None, session: Session | None, command: ForeignReport
) -> WrongStatus | None:
    """Refuse a report on an attempt that another worker holds; None lets the fence judge the attempt.

    Attempt ids are published, so that a report names the right attempt proves nothing about its sender.
    """
    if task is None or task.attempt_id != command.report.attempt_id:
        return None
    holder = (task.session_id, command.worker)
    if session is not None and is_foreign(session) and holder == (session.id, session.name):
        return None
    return WrongStatus(
        f"attempt {task.attempt_id} of task {task.id} is not held by the foreign worker {command.worker}",
        code="not_the_holder",
        task_id=task.id,
        hint="a worker on the stream reports only on turns that were granted to its own name",
    )


def is_grant_valid(task: Task | None, turn_id: str, epoch: int, attempt_id: str) -> bool:
    """Whether the attempt that a grant names still holds that turn."""
    return task is not None and (task.turn_id, task.epoch, task.attempt_id) == (turn_id, epoch, attempt_id)
