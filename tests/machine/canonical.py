"""Tasks up to renaming: two tasks that the machine cannot tell apart become one.

Ids are replaced by fixed ones, times become relative to now, and everything overdue is simply due. What
only people and the log look at is left out: version, hash, times of past events, texts of errors, why the
last turn failed, what a turn waited for before it went on. A person's hold stops `ends_by` and an open
approval, so only the time left when it began counts; every hold began a second ago. A cap beyond `ends_by`
never comes. An ended task has no times at all. test_canonical.py shows that nothing the machine looks at
is lost.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from endwell.machine.clocks import arm
from endwell.model.task import Task, Wait, packed_waits, waits_of
from endwell.policy.limits import SECOND

NOW: Final = 1_000 * SECOND
HOLDER: Final = "attempt"
CREATED: Final = NOW - 5 * SECOND
HELD_SINCE: Final = NOW - SECOND

Key = tuple[Any, ...]


def canonical(task: Task, now: int, crash_window: int) -> Task:
    """The same task with fixed ids, at the moment NOW."""
    shift = NOW - now
    same = replace(
        task,
        created_at=CREATED,
        reason=task.reason if task.is_ended else None,
        owner=None if task.held_since is None else task.owner,
        attempt_id=None if task.attempt_id is None else HOLDER,
        waits=_waits(task, shift),
        crash_times=_crash_times(task, now, crash_window, shift),
        run_at=_due(task.run_at, shift, task),
        ring_at=_due(task.ring_at, shift, task),
        dispatch_by=_due(task.dispatch_by, shift, task),
        progress_by=_due(task.progress_by, shift, task),
        wait_by=_due(task.wait_by, shift, task),
        suspend_by=None if task.suspend_by is None else _due(min(task.suspend_by, task.ends_by), shift, task),
        remind_at=_due(task.remind_at, shift, task),
        expire_at=None if task.expire_at is None else _stoppable(task.expire_at, shift, task),
        recover_at=_due(task.recover_at, shift, task),
        guard_at=_due(task.guard_at, shift, task),
        held_since=None if task.held_since is None else HELD_SINCE,
        ends_by=_stoppable(task.ends_by, shift, task),
        epoch=0,
        version=0,
        started_at=None,
        ended_at=NOW if task.is_ended else None,
        updated_at=NOW,
    )
    clock_at, clock_rule = arm(same)
    return replace(same, clock_at=clock_at, clock_rule=clock_rule)


def _stoppable(at: int, shift: int, task: Task) -> int:
    """A deadline that a person's hold stops."""
    if task.held_since is not None:
        return max(at - task.held_since, 0) + HELD_SINCE
    return NOW if task.is_ended else max(at + shift, NOW)


def _due(at: int | None, shift: int, task: Task) -> Any:
    if at is None:
        return None
    return NOW if task.is_ended else max(at + shift, NOW)


def _waits(task: Task, shift: int) -> str | None:
    if task.status != "suspended":
        return None
    return packed_waits(tuple(_wait(wait, shift) for wait in waits_of(task)))


def _wait(wait: Wait, shift: int) -> Wait:
    deadline = max(wait.deadline + shift, NOW) if wait.wait_status == "waiting" else NOW
    return replace(wait, deadline=deadline)


def _crash_times(task: Task, now: int, window: int, shift: int) -> str | None:
    if task.crash_times is None or task.is_ended:
        return None
    recent = [int(at) + shift for at in task.crash_times.split(",") if int(at) > now - window]
    return ",".join(map(str, recent)) or None


def key_of(task: Task) -> Key:
    """What makes a canonical task the same as another one; the clock follows from the rest."""
    return (
        task.status,
        task.reason,
        task.owner,
        task.dead_letter,
        task.superseded_by,
        task.turn_id,
        task.redelivery,
        task.session_id,
        task.slot,
        task.waits,
        task.retry_count,
        task.dispatch_count,
        task.crash_count,
        task.crash_times,
        task.run_at,
        task.ring_at,
        task.dispatch_by,
        task.progress_by,
        task.wait_by,
        task.suspend_by,
        task.remind_at,
        task.expire_at,
        task.recover_at,
        task.guard_at,
        task.guard_reason,
        task.held_since,
        task.ends_by,
    )
