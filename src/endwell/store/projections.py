"""Tables that are folded from the log beside `tasks`: which row each fact adds or closes.

Each entry of the table maps a fact to (name of a write query, its parameters).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from endwell.model import facts as f
from endwell.model.status import DISPATCHED, WAITING_APPROVAL
from endwell.model.task import Task

Row = tuple[str, tuple[Any, ...]]
_Projection = Callable[[Task, Task, Any, int], list[Row]]


def rows_of(before: Task | None, after: Task, fact: f.Fact, at: int) -> list[Row]:
    """The side rows that follow from a fact; most facts have none."""
    projection = _PROJECTIONS.get(type(fact))
    return projection(before or after, after, fact, at) if projection else []


def _turn_ended(before: Task, after: Task, fact: f.TurnEnded, at: int) -> list[Row]:
    turn = (
        after.namespace,
        fact.turn_id,
        after.id,
        before.turn_number,
        after.agent,
        before.attempt_id,
        before.session_id,
        fact.epoch,
        fact.outcome,
        fact.error,
        at,
    )
    return [("add_turn", turn), *_inbox_closed(before, at, "skipped")]


def _inbox_closed(before: Task, at: int, status: str) -> list[Row]:
    """A turn that was offered through the inbox leaves it when it is claimed or ends."""
    if before.status != DISPATCHED:
        return []
    return [("close_inbox", (status, at, before.namespace, before.turn_id))]


def _claimed(before: Task, after: Task, fact: f.TaskClaimed, at: int) -> list[Row]:
    return _inbox_closed(before, at, "consumed")


def _dispatched(before: Task, after: Task, fact: f.TaskDispatched, at: int) -> list[Row]:
    inbox_id = f"{fact.turn_id}.{fact.epoch}"
    row = (after.namespace, inbox_id, after.agent, after.agent_key, after.channel, after.id, fact.turn_id)
    return [("add_inbox_turn", (*row, fact.epoch, at))]


def _dead_lettered(before: Task, after: Task, fact: f.TaskDeadLettered, at: int) -> list[Row]:
    row = (after.namespace, after.id, after.agent, after.reason, fact.fingerprint, after.retry_count, at)
    return [("add_dead_letter", row)]


def _letter_closed(before: Task, after: Task, fact: f.Fact, at: int) -> list[Row]:
    return [("close_dead_letter", (after.dead_letter, at, after.namespace, after.id))]


def _approval_asked(before: Task, after: Task, fact: f.ApprovalRequested, at: int) -> list[Row]:
    return [("add_approval", (after.namespace, after.id, after.id, fact.remind_at, fact.expire_at, at))]


def _approval_decided(decision: str) -> _Projection:
    def rows(before: Task, after: Task, fact: Any, at: int) -> list[Row]:
        by = getattr(fact, "by", None)
        return [("close_approval", (decision, by, at, after.namespace, after.id))]

    return rows


def _suspended(before: Task, after: Task, fact: f.TaskSuspended, at: int) -> list[Row]:
    turn = (after.namespace, after.id, before.turn_id)
    return [("add_wait", (*turn, w.tool_call_id, w.kind, w.deadline, w.wait_status, at)) for w in fact.waits]


def _wait_answered(before: Task, after: Task, fact: f.WaitAnswered, at: int) -> list[Row]:
    where = (after.namespace, before.turn_id, fact.tool_call_id)
    return [("answer_wait", (fact.wait_status, fact.result_card, at, *where))]


def _blocked(before: Task, after: Task, fact: f.TaskBlocked, at: int) -> list[Row]:
    return [*_approval_void(before, after, fact, at), *_inbox_closed(before, at, "skipped")]


def _approval_void(before: Task, after: Task, fact: f.Fact, at: int) -> list[Row]:
    """A task that leaves `waiting_approval` by another way takes its open approval with it."""
    if before.status != WAITING_APPROVAL:
        return []
    return [("close_approval", ("void", None, at, after.namespace, after.id))]


_PROJECTIONS: Final[dict[type[f.Fact], _Projection]] = {
    f.TurnEnded: _turn_ended,
    f.TaskClaimed: _claimed,
    f.TaskDispatched: _dispatched,
    f.TaskDeadLettered: _dead_lettered,
    f.DeadLetterReplayed: _letter_closed,
    f.DeadLetterAbandoned: _letter_closed,
    f.ApprovalRequested: _approval_asked,
    f.ApprovalApproved: _approval_decided("approved"),
    f.ApprovalRejected: _approval_decided("rejected"),
    f.ApprovalExpired: _approval_decided("expired"),
    f.TaskSuspended: _suspended,
    f.WaitAnswered: _wait_answered,
    f.TaskFailed: _approval_void,
    f.TaskTimedOut: _approval_void,
    f.TaskCancelled: _approval_void,
    f.TaskBlocked: _blocked,
}
