"""decide(task, command, now, limits, seen) -> facts | refusal: the one entrance to the machine. Pure.

The rules are in `machine/table.py`: which command applies to a task in which statuses, who may send it, and
which function decides. A command that does not apply is refused by name. Everything that a decision needs
comes in as an argument.
"""

from __future__ import annotations

from typing import Any

from endwell import errors as e
from endwell.machine.decision import NO_EVIDENCE, Decision, Evidence, refuse, refuse_status, stale_attempt
from endwell.machine.table import HOLDER, TABLE, CommandRule
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.task import Task
from endwell.policy.limits import Limits


def decide(
    task: Task | None, command: Any, now: int, limits: Limits, seen: Evidence = NO_EVIDENCE
) -> Decision:
    """Decide a command to a task, or to none yet. `now` never runs back within a task."""
    rule = TABLE[type(command)]
    if task is None:
        if rule.creates_task:
            return rule.then(None, command, now, limits, seen)
        return refuse(e.NotFound(f"there is no task {command.task_id}", code="no_such_task"))
    if task.status not in rule.when:
        return _refuse_in_status(task, command, rule)
    if rule.by == HOLDER and command.attempt_id != task.attempt_id:
        return _refuse_stale(task, command)
    return rule.then(task, command, now if now > task.updated_at else task.updated_at, limits, seen)


def _refuse_in_status(task: Task, command: Any, rule: CommandRule) -> Decision:
    if rule.by == HOLDER:
        return _refuse_stale(task, command)
    if task.is_ended:
        return refuse(e.TaskEnded(f"task {task.id} has already ended as {task.status}", task_id=task.id))
    why = f"{type(command).__name__} does not apply to a task that is {task.status}"
    return refuse_status(task, why, hint=f"endwell why {task.id}: what can be done now")


def _refuse_stale(task: Task, command: c.AttemptCommand) -> Decision:
    """Refuse the write of an attempt that lost the task, and log that it tried."""
    refused = f.WriteRefused(
        command=type(command).__name__, attempt_id=command.attempt_id, holder=task.attempt_id
    )
    return refuse(stale_attempt(task, command.attempt_id), refused)
