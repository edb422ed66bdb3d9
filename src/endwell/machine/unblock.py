"""How a blocked task goes on."""

from __future__ import annotations

from endwell.machine.decision import Decision
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.approval import OpenApproval
from endwell.model.inside import inside_of
from endwell.model.task import Task
from endwell.policy.limits import Limits

EFFECT_UNKNOWN = "effect_unknown"
"""The reason of a task that a person holds because nobody knows whether an effect took place."""
NOBODY_TOOK_IT = "dispatch_timeout"
"""The reason of a task that no worker took until its retries were used up: its owner is informed.

Unblocking the task gives it all its retries again. The runaway guard counts on.
"""


def is_held_for(task: Task, effect_key: str) -> bool:
    """Whether a person holds the task for the sake of exactly this effect: one word on it frees the task.

    Logs of earlier versions do not say which effect it was: any word then frees the task, as it did.
    """
    is_held = task.status == s.BLOCKED and task.reason == EFFECT_UNKNOWN
    return is_held and inside_of(task).held_for in ("", effect_key)


def waits_for_person(task: Task) -> bool:
    """Whether the task is blocked until a person acts; the other blocked tasks cool down."""
    return task.status == s.BLOCKED and task.remind_at is not None


def stops_ends_by(task: Task) -> bool:
    """Whether the hold may stop `ends_by`: a person accepted it, or it protects an unknown effect."""
    inside = inside_of(task)
    return bool(inside.accepted_by or inside.held_for) or task.reason == EFFECT_UNKNOWN


def unblock(task: Task, now: int, limits: Limits, *, by: str, run_at: int) -> Decision:
    """Give back the time for which `ends_by` stood still; an approval still open is asked for again."""
    held = now - task.held_since if task.held_since is not None else 0
    unblocked = f.TaskUnblocked(
        by=by,
        run_at=run_at,
        ends_by=task.ends_by + held,
        retry_count=0 if task.reason == NOBODY_TOOK_IT else None,
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
