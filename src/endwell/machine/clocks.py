"""The clock table: no task without a clock.

For each deadline of a task `RULES` says in which statuses it counts, in which order deadlines are looked at,
and what follows once one has passed. `arm` gives a task its clock, the earliest deadline that counts. The
start time of a queued task is no deadline: workers find it through the claim index. Its clock is `ends_by`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final

import msgspec

from endwell.machine import endings
from endwell.machine.decision import NOTHING, Decision, Evidence
from endwell.machine.endings import TurnFailure
from endwell.machine.holds import end_hold, stops_ends_by
from endwell.machine.waiting import inject_timeouts
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.commands import ClockFired
from endwell.model.status import Status
from endwell.model.task import ErrorInfo, Task, error_of
from endwell.policy.limits import Limits

Action = Callable[[Task, ClockFired, int, Limits, Evidence], Decision]


class ClockRule(msgspec.Struct, frozen=True):
    """Once a task in one of these statuses is past its `deadline`, `then` decides what follows."""

    name: str
    when: tuple[Status, ...]
    deadline: str
    then: Action

    @property
    def text(self) -> str:
        """What follows, for people: the first line of what the action says about itself."""
        return (self.then.__doc__ or "").partition("\n")[0]


def end_by_deadline(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """End the task as timeout, as a dead letter.

    If its owner did not act on an escalation, it ends for the reason of that.
    """
    error = error_of(task)
    if task.status == s.BLOCKED and error is not None and error.code == task.reason:
        return endings.end(task, now, s.TIMEOUT, error.code, error=error, by_watchdog=True)
    return endings.end(task, now, s.TIMEOUT, "ends_by", by_watchdog=True)


def end_by_guard(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """End the task as failed: it was delivered too often, or its workers crashed too often."""
    return endings.end(task, now, s.FAILED, task.guard_reason or "runaway_guard", by_watchdog=True)


def reap(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """End the turn as failed, because it made no progress; retry or give up.

    Time without a PMO is given back, because the computer may have slept.
    """
    spared = (task.progress_by or 0) + command.away
    if spared > now:
        return Decision(facts=(f.TaskHeartbeat(progress_by=spared, note="its supervisor was away"),))
    error = ErrorInfo(code="timeout_reaped_by_watchdog", message="the turn made no progress in time")
    failure = TurnFailure(error, command.fraction, forced=True)
    return endings.end_failed_turn(task, failure, now, limits)


def end_untaken(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """End the turn as timeout, because no worker took it; retry, or block the task and inform its owner."""
    error = ErrorInfo(code="dispatch_timeout", message="no worker took the turn in time")
    failure = TurnFailure(error, command.fraction, ends_as=s.TIMEOUT, forced=True, escalates=True)
    return endings.end_failed_turn(task, failure, now, limits)


def expire_approval(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """End the task as timeout, because its approval was not decided in time."""
    expired = f.ExpiredApproval()
    return endings.end(task, now, s.TIMEOUT, "approval_expired", dead_letter=False, before=(expired,))


def end_unanswered(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """End the turn as timeout, because it was not resumed when its waits were over; retry or give up."""
    error = ErrorInfo(code="suspend_timeout", message="the turn was not resumed in time")
    failure = TurnFailure(error, command.fraction, ends_as=s.TIMEOUT, forced=True)
    return endings.end_failed_turn(task, failure, now, limits)


def recover(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Queue the task again after its cooldown, no earlier than its start time."""
    return end_hold(task, now, limits, by="cooldown", run_at=max(now, task.run_at))


def remind_approvers(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Remind the people who may decide."""
    return Decision(facts=(f.ApprovalReminded(remind_at=now + limits.remind_every),))


def remind_owner(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Remind the person who must act on the task.

    A hold from an older Endwell that no person accepted no longer stops `ends_by`.
    """
    ends_by = None
    if task.held_since is not None and not stops_ends_by(task):
        ends_by = task.ends_by + now - task.held_since
    return Decision(facts=(f.TaskReminded(remind_at=now + limits.remind_every, ends_by=ends_by),))


def ring_again(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Ring the workers' doorbell again; the dispatch timeout stays where it was."""
    ring_at = None if limits.ring_after is None else now + limits.ring_after
    return Decision(facts=(f.TaskRang(ring_at=ring_at),))


RULES: Final[tuple[ClockRule, ...]] = (
    ClockRule("ends_by", s.LIVE, "ends_by", then=end_by_deadline),
    ClockRule("guard", s.LIVE, "guard_at", then=end_by_guard),
    ClockRule("reap", (s.RUNNING,), "progress_by", then=reap),
    ClockRule("dispatch_timeout", (s.DISPATCHED,), "dispatch_by", then=end_untaken),
    ClockRule("approval_expire", (s.WAITING_APPROVAL,), "expire_at", then=expire_approval),
    ClockRule("inject_timeout", (s.SUSPENDED,), "wait_by", then=inject_timeouts),
    ClockRule("suspend_cap", (s.SUSPENDED,), "suspend_by", then=end_unanswered),
    ClockRule("recover", (s.BLOCKED,), "recover_at", then=recover),
    ClockRule("approval_remind", (s.WAITING_APPROVAL, s.SUSPENDED), "remind_at", then=remind_approvers),
    ClockRule("remind", (s.BLOCKED,), "remind_at", then=remind_owner),
    ClockRule("ring_again", (s.DISPATCHED,), "ring_at", then=ring_again),
)
RULE_NAMES: Final = tuple(rule.name for rule in RULES)

_Deadline = tuple[ClockRule, Callable[[Task], int | None]]
_BY_STATUS: Final[dict[str, tuple[_Deadline, ...]]] = {
    status: tuple((rule, attrgetter(rule.deadline)) for rule in RULES if status in rule.when)
    for status in s.ALL
}


def arm(task: Task) -> tuple[int | None, str | None]:
    """A task's clock: its earliest deadline, and rule name or guard reason. Ended tasks have none."""
    clock_at: int | None = None
    clock_rule: str | None = None
    for rule, deadline_of in _BY_STATUS[task.status]:
        at = deadline_of(task)
        if at is None or (clock_at is not None and at >= clock_at):
            continue
        if task.held_since is None or not _is_held_back(rule, task):
            clock_at, clock_rule = at, rule.name
    return clock_at, task.guard_reason if clock_rule == "guard" else clock_rule


def due(task: Task, now: int) -> ClockRule | None:
    """The first rule, in the order of the table, whose deadline has passed."""
    for rule, deadline_of in _BY_STATUS[task.status]:
        at = deadline_of(task)
        if at is not None and at <= now and not _is_held_back(rule, task):
            return rule
    return None


def fire(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Act on the first rule of the table that is due; on none if another PMO was quicker."""
    rule = due(task, now)
    return NOTHING if rule is None else rule.then(task, command, now, limits, seen)


def _is_held_back(rule: ClockRule, task: Task) -> bool:
    """Whether a hold stops this rule, which is `ends_by` then. The end of the hold gives the time back."""
    return rule.name == "ends_by" and task.held_since is not None
