"""Tables that are folded from the log beside `tasks`: which rows each fact adds or closes.

Each entry of `PROJECTIONS` maps a fact to rows: the name of a write query, and its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from endwell.model import facts as f
from endwell.model.card import shown_id
from endwell.model.inside import family_of, inside_of
from endwell.model.message import Message, trace_id_of
from endwell.model.status import DISPATCHED, SUSPENDED, WAITING_APPROVAL
from endwell.model.task import Task
from endwell.model.wait import Wait

Row = tuple[str, tuple[Any, ...]]
Projection = Callable[[Task, Task, Any, int], list[Row]]


def ledger_row(message: Message) -> Row | None:
    """The row of the resume ledger for an answer on its way to a waiting turn."""
    if message.message_type not in ("tool_result", "timeout", "child"):
        return None
    status = {"pending": "pending", "consumed": "applied"}.get(message.status, "dropped")
    if message.watchdog_error is not None:
        status = "dropped"
    turn = (message.namespace, message.turn_id or "", message.correlation_id, message.card_id or "")
    about = (message.task_id, message.id, status, message.created_at, message.message_type)
    return ("add_resume", (*turn, *about))


def _turn_end_rows(before: Task, after: Task, fact: f.TurnEnded, at: int) -> list[Row]:
    return [*_closed_inbox_rows(before, at), *_dropped_wait_rows(before, at)]


def _dropped_wait_rows(before: Task, at: int) -> list[Row]:
    """The waits of a turn end with it, and so do its approvals."""
    if before.waits is None:
        return []
    asked = [one.id for one in inside_of(before).asked if one.id != before.id]
    void = [("close_approval", ("void", None, at, before.namespace, each)) for each in asked]
    return [("drop_waits", (at, before.namespace, before.turn_id)), *void]


def _was_offered(task: Task) -> bool:
    """Whether the turn is in the inbox. Most never are, because workers claim ready tasks directly."""
    return task.inside is not None and inside_of(task).is_offered


def _closed_inbox_rows(before: Task, at: int) -> list[Row]:
    """A turn that was offered through the inbox leaves it when it ends: consumed, or skipped if unclaimed."""
    if not _was_offered(before):
        return []
    if before.status == DISPATCHED:
        return [_inbox_mark(before, "skipped", None, at, at, why="turn_over")]
    return [_inbox_mark(before, "consumed", None, at, at)]


def _inbox_mark(
    task: Task,
    status: str,
    attempt_id: str | None,
    processed_at: int | None,
    archived_at: int | None,
    why: str | None = None,
) -> Row:
    marks = (status, attempt_id, processed_at, archived_at)
    return ("mark_inbox", (*marks, task.namespace, task.turn_id, why))


def _claim_rows(before: Task, after: Task, fact: f.TaskClaimed, at: int) -> list[Row]:
    if not _was_offered(before):
        return []
    return [_inbox_mark(after, "processing", fact.attempt_id, at, None)]


def _returned_turn_rows(before: Task, after: Task, fact: f.Fact, at: int) -> list[Row]:
    """The commit that takes a turn from its holder also puts its message back."""
    return [_inbox_mark(after, "pending", None, None, None)] if _was_offered(before) else []


def _dispatch_rows(before: Task, after: Task, fact: f.TaskDispatched, at: int) -> list[Row]:
    return [_inbox_row(after, f"{fact.turn_id}.{fact.epoch}", at)] if fact.is_offered else []


def _ring_rows(before: Task, after: Task, fact: f.TaskRang, at: int) -> list[Row]:
    """Put the turn into the inbox once more, under another id; one claim takes all its rows."""
    return [_inbox_row(after, f"{after.turn_id}.{after.epoch}.{at}", at)] if _was_offered(before) else []


def _inbox_row(task: Task, inbox_id: str, at: int) -> Row:
    row = (task.namespace, inbox_id, task.agent, task.agent_key, task.channel, task.id, task.turn_id)
    family = family_of(task)
    about = (family.depth, task.trace, trace_id_of(task.trace), family.parent_agent or None)
    return ("add_inbox_turn", (*row, task.epoch, at, *about))


def _dead_letter_rows(before: Task, after: Task, fact: f.TaskDeadLettered, at: int) -> list[Row]:
    row = (after.namespace, after.id, after.agent, after.reason, fact.fingerprint, after.retry_count, at)
    return [("add_dead_letter", row)]


def _closed_letter_rows(before: Task, after: Task, fact: f.Fact, at: int) -> list[Row]:
    return [("close_dead_letter", (after.dead_letter, at, after.namespace, after.id))]


def _approval_request_rows(before: Task, after: Task, fact: f.ApprovalRequested, at: int) -> list[Row]:
    approval_id = fact.id or after.id
    shown = shown_id(approval_id) if fact.id else after.payload_card
    question = fact.question or f"May {after.agent} start with this?"
    about = (question, shown, fact.shown_hash, ",".join(fact.by), fact.quorum)
    when = (fact.remind_at, fact.expire_at, at)
    return [("add_approval", (after.namespace, approval_id, after.id, *about, *when))]


def _vote_rows(before: Task, after: Task, fact: f.ApprovalVoted, at: int) -> list[Row]:
    return [("vote_approval", (fact.by, after.namespace, fact.id or after.id))]


def _approval_decision_rows(decision: str) -> Projection:
    def rows(before: Task, after: Task, fact: Any, at: int) -> list[Row]:
        by = getattr(fact, "by", None)
        return [("close_approval", (decision, by, at, after.namespace, fact.id or after.id))]

    return rows


def _suspension_rows(before: Task, after: Task, fact: f.TaskSuspended, at: int) -> list[Row]:
    return [*_wait_rows(after, fact.waits, 0, at), *_closed_inbox_rows(before, at)]


def _added_wait_rows(before: Task, after: Task, fact: f.WaitsAdded, at: int) -> list[Row]:
    return _wait_rows(after, fact.waits, fact.first, at)


def _wait_rows(task: Task, waits: tuple[Wait, ...], first: int, at: int) -> list[Row]:
    turn = (task.namespace, task.id, task.turn_id)
    return [
        ("add_wait", (*turn, w.tool_call_id, w.kind, w.name, w.deadline, w.wait_status, at, place))
        for place, w in enumerate(waits, first)
    ]


def _answered_wait_rows(before: Task, after: Task, fact: f.WaitAnswered, at: int) -> list[Row]:
    where = (after.namespace, before.turn_id, fact.tool_call_id)
    return [("answer_wait", (fact.wait_status, fact.result_card, 0, at, *where))]


def _expired_wait_rows(before: Task, after: Task, fact: f.WaitExpired, at: int) -> list[Row]:
    """Reported waits stay open: an answer, or the report itself, settles them."""
    turn = (after.namespace, before.turn_id)
    return [
        ("answer_wait", ("waiting", None, 1, at, *turn, call)) for call in (*fact.reported, *fact.skipped)
    ]


def _block_rows(before: Task, after: Task, fact: f.TaskBlocked, at: int) -> list[Row]:
    """Blocking drops the waits: the turn runs again from its top when the hold is over."""
    dropped: list[Row] = []
    if before.status == SUSPENDED:
        dropped.append(("drop_waits", (at, before.namespace, before.turn_id)))
    return [*_void_approval_rows(before, after, fact, at), *_closed_inbox_rows(before, at), *dropped]


def _void_approval_rows(before: Task, after: Task, fact: f.Fact, at: int) -> list[Row]:
    """Close the open approval of a task that leaves `waiting_approval` without a decision."""
    if before.status != WAITING_APPROVAL:
        return []
    return [("close_approval", ("void", None, at, after.namespace, after.id))]


PROJECTIONS: Final[dict[type[f.Fact], Projection]] = {
    f.TurnEnded: _turn_end_rows,
    f.TaskClaimed: _claim_rows,
    f.TaskDispatched: _dispatch_rows,
    f.TaskRang: _ring_rows,
    f.TaskReclaimed: _returned_turn_rows,
    f.TaskHandedBack: _returned_turn_rows,
    f.TaskDeadLettered: _dead_letter_rows,
    f.DeadLetterReplayed: _closed_letter_rows,
    f.DeadLetterAbandoned: _closed_letter_rows,
    f.ApprovalRequested: _approval_request_rows,
    f.ApprovalVoted: _vote_rows,
    f.ApprovalApproved: _approval_decision_rows("approved"),
    f.RejectedApproval: _approval_decision_rows("rejected"),
    f.ExpiredApproval: _approval_decision_rows("expired"),
    f.TaskSuspended: _suspension_rows,
    f.WaitsAdded: _added_wait_rows,
    f.WaitAnswered: _answered_wait_rows,
    f.WaitExpired: _expired_wait_rows,
    f.FailedEnding: _void_approval_rows,
    f.TimedOutEnding: _void_approval_rows,
    f.CancelledEnding: _void_approval_rows,
    f.TaskBlocked: _block_rows,
}
