"""What each clock rule does once its deadline has passed; the names are those of `clocks.RULES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from endwell.machine import endings
from endwell.machine.decision import Decision, Evidence
from endwell.machine.unblock import stops_ends_by, unblock
from endwell.machine.waiting import inject
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.commands import ClockFired
from endwell.model.task import ErrorInfo, Task, error_of
from endwell.policy.limits import Limits


def _ends_by(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """A task that was escalated, and on which no person acted, ends for what it was escalated for."""
    error = error_of(task)
    if task.status == s.BLOCKED and error is not None and error.code == task.reason:
        return endings.end(task, now, s.TIMEOUT, error.code, error=error, by_watchdog=True)
    return endings.end(task, now, s.TIMEOUT, "ends_by", by_watchdog=True)


def _guard(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    return endings.end(task, now, s.FAILED, task.guard_reason or "runaway_guard", by_watchdog=True)


def _reap(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Time in which nobody looked does not count against who works: a machine may have slept."""
    spared = (task.progress_by or 0) + command.away
    if spared > now:
        return Decision(facts=(f.TaskHeartbeat(progress_by=spared, note="its supervisor was away"),))
    error = ErrorInfo(code="timeout_reaped_by_watchdog", message="the turn made no progress in time")
    return endings.fail_turn(task, now, limits, error, fraction=command.fraction, forced=True)


def _dispatch_timeout(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """After the last retry the owner is informed; unless that person acts, `ends_by` ends the task."""
    error = ErrorInfo(code="dispatch_timeout", message="no worker took the turn in time")
    return endings.fail_turn(
        task, now, limits, error, fraction=command.fraction, ends_as=s.TIMEOUT, forced=True, escalates=True
    )


def _approval_expire(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    expired = f.ExpiredApproval()
    return endings.end(task, now, s.TIMEOUT, "approval_expired", dead_letter=False, before=(expired,))


def _approval_remind(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    return Decision(facts=(f.ApprovalReminded(remind_at=now + limits.remind_every),))


def _remind(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """A hold from an earlier version that no person accepted stops no longer; its time is given back."""
    ends_by = None
    if task.held_since is not None and not stops_ends_by(task):
        ends_by = task.ends_by + now - task.held_since
    return Decision(facts=(f.TaskReminded(remind_at=now + limits.remind_every, ends_by=ends_by),))


def _suspend_cap(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """The last net: whatever should have answered or reported has not."""
    error = ErrorInfo(code="suspend_timeout", message="the turn was not woken in time")
    return endings.fail_turn(
        task, now, limits, error, fraction=command.fraction, ends_as=s.TIMEOUT, forced=True
    )


def _inject_timeout(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    return inject(task, command, now, limits, seen)


def _recover(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """A cooldown lets nothing start before its time."""
    return unblock(task, now, limits, by="cooldown", run_at=max(now, task.run_at))


def _ring_again(task: Task, command: ClockFired, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Only the ring moves; the dispatch timeout behind it stays where it was."""
    ring_at = None if limits.ring_after is None else now + limits.ring_after
    return Decision(facts=(f.TaskRang(ring_at=ring_at),))


FIRED: Final[dict[str, Callable[[Task, ClockFired, int, Limits, Evidence], Decision]]] = {
    "ends_by": _ends_by,
    "guard": _guard,
    "reap": _reap,
    "dispatch_timeout": _dispatch_timeout,
    "approval_expire": _approval_expire,
    "suspend_cap": _suspend_cap,
    "inject_timeout": _inject_timeout,
    "recover": _recover,
    "approval_remind": _approval_remind,
    "remind": _remind,
    "ring_again": _ring_again,
}
