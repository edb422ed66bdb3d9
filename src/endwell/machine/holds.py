"""Holding a task: blocking it for a person or a cooldown, accepting the hold, and queueing it again."""

from __future__ import annotations

from endwell.machine.decision import NOTHING, Decision, Evidence, refuse, refuse_status, stale_attempt
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.approval import OpenApproval
from endwell.model.inside import inside_of
from endwell.model.task import Task
from endwell.policy.limits import Limits

EFFECT_UNKNOWN = "effect_unknown"
"""The reason of a hold until a person says whether an effect took place."""
UNTAKEN = "dispatch_timeout"
"""The reason of a hold on a task that no worker took until its retries were used up.

Unblocking the task gives it all its retries again. The runaway guard keeps counting.
"""


def is_held_for(task: Task, effect_key: str) -> bool:
    """Whether a person holds the task for exactly this effect, so that a verdict on it frees the task.

    Logs of earlier versions do not name the effect: any verdict then frees the task, as it did.
    """
    is_held = task.status == s.BLOCKED and task.reason == EFFECT_UNKNOWN
    return is_held and inside_of(task).held_for in ("", effect_key)


def waits_for_person(task: Task) -> bool:
    """Whether the task is blocked until a person acts; other blocked tasks cool down."""
    return task.status == s.BLOCKED and task.remind_at is not None


def stops_ends_by(task: Task) -> bool:
    """Whether the hold may stop `ends_by`: a person accepted it, or it protects an unknown effect."""
    inside = inside_of(task)
    return bool(inside.accepted_by or inside.held_for) or task.reason == EFFECT_UNKNOWN


def block(task: Task, command: c.Block, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Hold the task for a person, or let it cool down."""
    if command.attempt_id is not None and command.attempt_id != task.attempt_id:
        return refuse(stale_attempt(task, command.attempt_id))
    if command.effect_key is not None and seen.effect is not None and seen.effect.is_settled:
        why = f"the effect {command.effect_key!r} is already {seen.effect.status}"
        return refuse_status(task, why, code="effect_settled")
    if command.cooldown is not None:
        return Decision(facts=(f.TaskBlocked(reason=command.reason, recover_at=now + command.cooldown),))
    held = f.TaskBlocked(
        reason=command.reason,
        owner=command.owner or task.owner or limits.owner,
        remind_at=now + limits.remind_every,
        effect_key=command.effect_key,
        is_unaccepted=command.effect_key is None,
    )
    return Decision(facts=(held,))


def assign(task: Task, command: c.Assign, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Make a person the owner. Of a blocked task that person accepts the hold, which stops `ends_by`."""
    assigned = f.TaskAssigned(owner=command.owner, by=command.actor, accepts_hold=waits_for_person(task))
    return Decision(facts=(assigned,))


def run_now(task: Task, command: c.RunNow, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Start a waiting or blocked task now."""
    if task.status == s.BLOCKED:
        return end_hold(task, now, limits, by=command.actor, run_at=now)
    return Decision(facts=(f.TaskRushed(run_at=now, by=command.actor),)) if task.run_at > now else NOTHING


def unblock(task: Task, command: c.Unblock, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Queue a blocked task now."""
    if command.effect_key is not None and not is_held_for(task, command.effect_key):
        return refuse_status(task, f"task {task.id} is not held for the effect {command.effect_key!r}")
    return end_hold(task, now, limits, by=command.actor, run_at=now)


def end_hold(task: Task, now: int, limits: Limits, *, by: str, run_at: int) -> Decision:
    """Give back the time for which `ends_by` stood still; an approval that is open is requested again."""
    held = now - task.held_since if task.held_since is not None else 0
    unblocked = f.TaskUnblocked(
        by=by,
        run_at=run_at,
        ends_by=task.ends_by + held,
        retry_count=0 if task.reason == UNTAKEN else None,
    )
    if task.expire_at is None:
        return Decision(facts=(unblocked,))
    before = next((one for one in inside_of(task).asked if one.id == task.id), OpenApproval(task.id, ""))
    asked = f.ApprovalRequested(
        remind_at=now + limits.remind_every,
        expire_at=task.expire_at + held,
        shown_hash=before.shown_hash,
        by=before.by,
        quorum=before.quorum,
    )
    return Decision(facts=(unblocked, asked))
