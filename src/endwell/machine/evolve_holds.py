"""What approvals and holds do to a task. Pure; a part of `evolve`."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.approval import OpenApproval
from endwell.model.facts import encode_error
from endwell.model.inside import changed_inside, inside_of
from endwell.model.task import Task, waits_of

# cleared when no worker holds, or is offered, the task any more
RELEASED: Final[dict[str, Any]] = {
    "attempt_id": None,
    "session_id": None,
    "slot": None,
    "ring_at": None,
    "dispatch_by": None,
    "progress_by": None,
}


def fold_approval_requested(task: Task, fact: f.ApprovalRequested, at: int) -> Task:
    """Open an approval; one without an id of its own stops the task before its start."""
    inside = _with_request(task, fact)
    if fact.id is not None:
        return replace(task, inside=inside, remind_at=fact.remind_at)
    return replace(
        task,
        status=s.WAITING_APPROVAL,
        remind_at=fact.remind_at,
        expire_at=fact.expire_at,
        inside=inside,
    )


def _with_request(task: Task, fact: f.ApprovalRequested) -> str | None:
    """Add the open approval; if the same content is requested again, its votes still count."""
    new = OpenApproval(fact.id or task.id, fact.shown_hash, fact.by, fact.quorum)
    others = []
    for one in inside_of(task).asked:
        if one.id != new.id:
            others.append(one)
        elif one.shown_hash == new.shown_hash:
            new = replace(new, votes=one.votes)
    return changed_inside(task, asked=(*others, new))


def fold_approval_voted(task: Task, fact: f.ApprovalVoted, at: int) -> Task:
    """Add a vote."""
    wanted = fact.id or task.id
    asked = tuple(
        replace(one, votes=(*one.votes, fact.by)) if one.id == wanted else one
        for one in inside_of(task).asked
    )
    return replace(task, inside=changed_inside(task, asked=asked))


def fold_approval_approved(task: Task, fact: f.ApprovalApproved, at: int) -> Task:
    """Close the approval; one before the start queues the task."""
    if fact.id is not None:
        return fold_approval_over(task, fact, at)
    inside = _without_request(task, None)
    return replace(task, status=s.QUEUED, run_at=fact.run_at, remind_at=None, expire_at=None, inside=inside)


_Decided = f.ApprovalApproved | f.RejectedApproval | f.ExpiredApproval


def fold_approval_over(task: Task, fact: _Decided, at: int) -> Task:
    """Close an approval. One before the start ends the task, which keeps it for a replay."""
    if fact.id is None:
        return task
    others = (w for w in waits_of(task) if w.kind == "approval" and w.is_open and w.tool_call_id != fact.id)
    remind_at = task.remind_at if any(others) else None
    return replace(task, inside=_without_request(task, fact.id), remind_at=remind_at)


def _without_request(task: Task, approval_id: str | None) -> str | None:
    wanted = approval_id or task.id
    return changed_inside(task, asked=tuple(one for one in inside_of(task).asked if one.id != wanted))


def fold_blocked(task: Task, fact: f.TaskBlocked, at: int) -> Task:
    """Hold the task, or let it cool down."""
    return replace(
        task,
        status=s.BLOCKED,
        reason=fact.reason,
        owner=fact.owner or task.owner,
        error=encode_error(fact.error) if fact.error else task.error,
        retry_count=task.retry_count if fact.retry_count is None else fact.retry_count,
        inside=changed_inside(task, is_offered=False, held_for=fact.effect_key or ""),
        held_since=at if fact.remind_at is not None and not fact.is_unaccepted else None,
        wait_by=None,
        suspend_by=None,
        remind_at=fact.remind_at,
        recover_at=fact.recover_at,
        **RELEASED,
    )


def fold_unblocked(task: Task, fact: f.TaskUnblocked, at: int) -> Task:
    """End the hold."""
    return replace(
        task,
        status=s.QUEUED,
        inside=changed_inside(task, held_for="", accepted_by=""),
        reason=None,
        run_at=fact.run_at,
        ends_by=fact.ends_by,
        retry_count=task.retry_count if fact.retry_count is None else fact.retry_count,
        held_since=None,
        remind_at=None,
        recover_at=None,
    )


def fold_assigned(task: Task, fact: f.TaskAssigned, at: int) -> Task:
    """Change the owner, who may accept the hold."""
    if not fact.accepts_hold:
        return replace(task, owner=fact.owner)
    inside = changed_inside(task, accepted_by=fact.owner)
    held_since = at if task.held_since is None else task.held_since
    return replace(task, owner=fact.owner, inside=inside, held_since=held_since)


def fold_reminded(task: Task, fact: f.TaskReminded, at: int) -> Task:
    """Set the next reminder; a hold that was never accepted stops `ends_by` no longer."""
    if fact.ends_by is None:
        return replace(task, remind_at=fact.remind_at)
    expire_at = None if task.expire_at is None else task.expire_at + fact.ends_by - task.ends_by
    return replace(task, remind_at=fact.remind_at, ends_by=fact.ends_by, expire_at=expire_at, held_since=None)
