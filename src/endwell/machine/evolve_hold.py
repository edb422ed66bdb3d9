"""What blocking, accepting, reminding of and unblocking do to a task. Pure; a part of `evolve`."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.facts import encode_error
from endwell.model.inside import changed_inside
from endwell.model.task import Task

# what a task lets go of when no worker is to hold or expect it any more
LET_GO: Final[dict[str, Any]] = {
    "attempt_id": None,
    "session_id": None,
    "slot": None,
    "ring_at": None,
    "dispatch_by": None,
    "progress_by": None,
}


def blocked(task: Task, fact: f.TaskBlocked, at: int) -> Task:
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
        **LET_GO,
    )


def unblocked(task: Task, fact: f.TaskUnblocked, at: int) -> Task:
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


def assigned(task: Task, fact: f.TaskAssigned, at: int) -> Task:
    if not fact.accepts_hold:
        return replace(task, owner=fact.owner)
    inside = changed_inside(task, accepted_by=fact.owner)
    held_since = at if task.held_since is None else task.held_since
    return replace(task, owner=fact.owner, inside=inside, held_since=held_since)


def reminded(task: Task, fact: f.TaskReminded, at: int) -> Task:
    if fact.ends_by is None:
        return replace(task, remind_at=fact.remind_at)
    expire_at = None if task.expire_at is None else task.expire_at + fact.ends_by - task.ends_by
    return replace(task, remind_at=fact.remind_at, ends_by=fact.ends_by, expire_at=expire_at, held_since=None)
