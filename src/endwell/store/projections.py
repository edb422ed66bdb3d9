"""Tables that are folded from the log beside `tasks`: which row each fact adds or closes.

Each entry of the table maps a fact to (name of a write query, its parameters).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from endwell.model import facts as f
from endwell.model.card import shown_id
from endwell.model.inside import inside_of
from endwell.model.message import Message
from endwell.model.status import DISPATCHED, WAITING_APPROVAL
from endwell.model.task import Task

Row = tuple[str, tuple[Any, ...]]
_Projection = Callable[[Task, Task, Any, int], list[Row]]


def rows_of(before: Task | None, after: Task, fact: f.Fact, at: int) -> list[Row]:
    """The side rows that follow from a fact; most facts have none."""
    projection = _PROJECTIONS.get(type(fact))
    return projection(before or after, after, fact, at) if projection else []


def ledger_row(message: Message) -> Row | None:
    """An answer on its way to a waiting turn is in the resume ledger until it is applied."""
    if message.message_type not in ("tool_result", "timeout", "child"):
        return None
    status = {"pending": "pending", "consumed": "applied"}.get(message.status, "dropped")
    if message.watchdog_error is not None:
        status = "dropped"
    turn = (message.namespace, message.turn_id or "", message.correlation_id, message.card_id or "")
    return ("add_resume", (*turn, message.task_id, message.id, status, message.created_at))


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
    return [("add_turn", turn), *_inbox_closed(before, at, "skipped"), *_waits_over(before, at)]


def _waits_over(before: Task, at: int) -> list[Row]:
    """What a turn waited for ends with it, and so does what it asked of people."""
    if before.waits is None:
        return []
    asked = [one.id for one in inside_of(before).asked if one.id != before.id]
    void = [("close_approval", ("void", None, at, before.namespace, each)) for each in asked]
    return [("drop_waits", (at, before.namespace, before.turn_id)), *void]


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
    approval_id = fact.id or after.id
    shown = shown_id(approval_id) if fact.id else after.payload_card
    about = (fact.question, shown, fact.shown_hash, ",".join(fact.by), fact.quorum)
    when = (fact.remind_at, fact.expire_at, at)
    return [("add_approval", (after.namespace, approval_id, after.id, *about, *when))]


def _approval_voted(before: Task, after: Task, fact: f.ApprovalVoted, at: int) -> list[Row]:
    return [("vote_approval", (fact.by, after.namespace, fact.id or after.id))]


def _approval_decided(decision: str) -> _Projection:
    def rows(before: Task, after: Task, fact: Any, at: int) -> list[Row]:
        by = getattr(fact, "by", None)
        return [("close_approval", (decision, by, at, after.namespace, fact.id or after.id))]

    return rows


def _suspended(before: Task, after: Task, fact: f.TaskSuspended, at: int) -> list[Row]:
    turn = (after.namespace, after.id, before.turn_id)
    return [
        ("add_wait", (*turn, w.tool_call_id, w.kind, w.name, w.deadline, w.wait_status, at))
        for w in fact.waits
    ]


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
    f.ApprovalVoted: _approval_voted,
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
