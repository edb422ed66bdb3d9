"""No task without a clock: which deadlines count in which status, and in what order they are looked at.

The table below is the whole of it. `arm` gives a task its clock (the earliest deadline that
counts), `due` finds the first rule whose deadline has passed. The start time of a queued task is
not here on purpose: ready is not due. Workers find ready tasks through the claim index.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

import msgspec

from endwell.model import status as s
from endwell.model.status import Status
from endwell.model.task import Task


class Rule(msgspec.Struct, frozen=True):
    """When `deadline` of a task in one of these statuses has passed, the rule's action follows."""

    name: str
    when: tuple[Status, ...]
    deadline: str
    then: str


RULES: Final[tuple[Rule, ...]] = (
    Rule("ends_by", s.LIVE, "ends_by", "end the task as timeout; it is a dead letter"),
    Rule("guard", s.LIVE, "guard_at", "end the task as failed: runaway_guard or crash_limit"),
    Rule("reap", (s.RUNNING,), "progress_by", "end the turn as failed; retry or give up"),
    Rule(
        "dispatch_timeout",
        (s.DISPATCHED,),
        "dispatch_by",
        "end the turn as timeout; retry, or inform a person",
    ),
    Rule("approval_expire", (s.WAITING_APPROVAL,), "expire_at", "end the task as timeout: expired"),
    Rule("inject_timeout", (s.SUSPENDED,), "wait_by", "settle timers and approvals, report other waits"),
    Rule("suspend_cap", (s.SUSPENDED,), "suspend_by", "end the turn as timeout; retry or give up"),
    Rule("recover", (s.BLOCKED,), "recover_at", "queue the task again: the cooldown is over"),
    Rule("approval_remind", (s.WAITING_APPROVAL, s.SUSPENDED), "remind_at", "remind whoever may decide"),
    Rule("remind", (s.BLOCKED,), "remind_at", "remind the person who must act on the task"),
    Rule("ring_again", (s.DISPATCHED,), "ring_at", "ring the workers' doorbell again"),
)

RULE_NAMES: Final = tuple(rule.name for rule in RULES)

_Deadline = tuple[Rule, Callable[[Task], int | None]]
_BY_STATUS: Final[dict[str, tuple[_Deadline, ...]]] = {
    status: tuple((rule, attrgetter(rule.deadline)) for rule in RULES if status in rule.when)
    for status in s.ALL
}


def arm(task: Task) -> tuple[int | None, str | None]:
    """The clock of a task: its earliest deadline and that deadline's rule. Ended tasks have none."""
    clock_at: int | None = None
    clock_rule: str | None = None
    for rule, deadline_of in _BY_STATUS[task.status]:
        at = deadline_of(task)
        if at is None or (clock_at is not None and at >= clock_at):
            continue
        if task.held_since is None or not _is_held_back(rule, task):
            clock_at, clock_rule = at, rule.name
    return clock_at, task.guard_reason if clock_rule == "guard" else clock_rule


def due(task: Task, now: int) -> Rule | None:
    """The first rule, in the order of the table, whose deadline has passed."""
    for rule, deadline_of in _BY_STATUS[task.status]:
        at = deadline_of(task)
        if at is not None and at <= now and not _is_held_back(rule, task):
            return rule
    return None


def _is_held_back(rule: Rule, task: Task) -> bool:
    """Only a hold that a person accepted, or that protects an unknown effect, stops `ends_by`.

    The time is given back when the hold ends.
    """
    return rule.name == "ends_by" and task.held_since is not None
