"""Suspension: a turn releases its worker; each wait has its own deadline; the first answer counts.

An early answer is kept in the inbox and applied once the turn waits for it; an answer after the first is
acknowledged and kept. Nothing that arrives is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from endwell import errors as e
from endwell.machine import approvals
from endwell.machine.decision import NOTHING, Closing, Decision, Evidence, refuse
from endwell.machine.wait_settlement import Answered, known_waits, next_deadline, record_answer, settle
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import Card, answer_id, call_id, shown_id
from endwell.model.content import fingerprint
from endwell.model.message import Message, MessageType, Report, packed_report, pending_message, report_of
from endwell.model.task import Task, has_wait_rows
from endwell.model.wait import Wait, WaitKind
from endwell.policy.limits import Limits
from endwell.policy.waiting import WAITS_PER_EVENT, refuse_too_many, refuse_twice

TOOL_TIMEOUT: Final = {"code": "tool_timeout", "message": "no answer came in time"}
_SETTLED_BY_TIME: Final = {"timer": "success", "approval": "expired"}
"""Waits that their deadline settles; for the others the inbox gets a report."""
_ANSWERED_BY: Final[dict[str, tuple[WaitKind, ...]]] = {
    "tool_result": ("tool", "call"),
    "child": ("tool", "call"),
    "timeout": ("tool", "call", "signal"),
    "signal": ("signal",),
}
"""The kinds of waits that a message can settle. No message decides an approval."""
_encoder = msgspec.json.Encoder(order="sorted")


def suspend(task: Task, command: c.Suspend, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Suspend the turn. `ends_by` cuts every wait; the cap after the last one is the final net."""
    if not command.calls:
        return refuse(e.BadInput("a turn cannot suspend without waiting for something", code="no_waits"))
    unfit = refuse_too_many(command.calls) or refuse_twice(command.calls)
    if unfit is not None:
        return refuse(unfit)
    too_long = next((call for call in command.calls if _cannot_end(call, task, now)), None)
    if too_long is not None:
        return refuse(_too_long(task, too_long))
    waits = tuple(
        Wait(call.tool_call_id, call.kind, min(now + call.within, task.ends_by), name=call.name)
        for call in command.calls
    )
    hashes = tuple("" if call.kind == "approval" else call.content_hash for call in command.calls)
    suspended = _suspension_facts(command, waits, hashes if any(hashes) else (), limits)
    asked = approvals.requested_by_calls(task, command.calls, now, limits)
    cards = tuple(_asked_card(task, call, now) for call in command.calls if call.content is not None)
    early = _apply_early(task, waits, seen.messages, now)
    return Decision(
        facts=(*suspended, *asked, *early.facts), cards=(*cards, *early.cards), closed=early.closed
    )


def _suspension_facts(
    command: c.Suspend, waits: tuple[Wait, ...], hashes: tuple[str, ...], limits: Limits
) -> tuple[f.Fact, ...]:
    """Few waits are part of the event and the task's row; many have rows, and events list them in parts."""
    is_many = len(waits) > limits.waits_in_row
    suspended = f.TaskSuspended(
        waits=() if is_many else waits,
        wait_by=min(wait.deadline for wait in waits),
        suspend_by=max(wait.deadline for wait in waits) + limits.suspend_grace,
        children=sum(call.is_child for call in command.calls),
        count=len(waits) if is_many else None,
        call_hashes=() if is_many else hashes,
    )
    if not is_many:
        return (suspended,)
    parts = (slice(at, at + WAITS_PER_EVENT) for at in range(0, len(waits), WAITS_PER_EVENT))
    added = (f.WaitsAdded(first=part.start, waits=waits[part], call_hashes=hashes[part]) for part in parts)
    return (suspended, *added)


def _cannot_end(call: c.Call, task: Task, now: int) -> bool:
    """Whether `ends_by` would cut a sleep or an approval, which changes its meaning; a tool may be cut."""
    return call.kind in ("timer", "approval") and now + call.within >= task.ends_by


def _too_long(task: Task, call: c.Call) -> e.BadInput:
    what = "sleep" if call.kind == "timer" else "approval"
    return e.BadInput(
        f"this {what} cannot end before the task must ({task.id})",
        code="beyond_deadline",
        hint="submit the task with a longer deadline=, or wait for less time",
        task_id=task.id,
    )


def _asked_card(task: Task, call: c.Call, now: int) -> Card:
    content = call.content or b"null"
    if call.kind == "approval":
        card_id = shown_id(call.tool_call_id)
        return Card(task.namespace, card_id, task.id, "approval.shown", content, call.content_hash, now)
    card_id = call_id(call.tool_call_id)
    return Card(task.namespace, card_id, task.id, "tool.call", content, call.content_hash, now)


def _apply_early(task: Task, waits: tuple[Wait, ...], messages: tuple[Message, ...], now: int) -> Decision:
    """Apply the answers that were there before the turn waited for them."""
    found: dict[str, Message] = {}
    by_call = {wait.tool_call_id: wait for wait in waits}
    by_signal: dict[str, deque[Wait]] = {}
    for wait in waits:
        if wait.kind == "signal":
            by_signal.setdefault(wait.name, deque()).append(wait)
    for message in messages:
        if message.message_type == "signal":
            of_name = by_signal.get(report_of(message).name or "")
            asked = of_name[0] if of_name else None
        else:
            of_name, asked = None, by_call.get(message.correlation_id)
        if asked is None or asked.tool_call_id in found or _wait_for((asked,), message) is None:
            continue
        found[asked.tool_call_id] = message
        if of_name:
            of_name.popleft()
    if not found:
        return NOTHING
    answers = {call: _answer_of(task, call, message, now) for call, message in found.items()}
    closed = tuple(Closing(message.id, "consumed") for message in found.values())
    settled = settle(task, waits, now, answers)
    return replace(settled, closed=closed)


def _wait_for(waits: Sequence[Wait], message: Message) -> Wait | None:
    """The open wait that a message answers, by its call or by the signal's name."""
    kinds = _ANSWERED_BY.get(message.message_type, ())
    for wait in waits:
        if wait.is_open and wait.kind in kinds and _is_about(message, wait):
            return wait
    return None


def _is_about(message: Message, wait: Wait) -> bool:
    if message.message_type == "signal":
        return wait.name == report_of(message).name
    return wait.tool_call_id == message.correlation_id


def _answer_of(task: Task, tool_call_id: str, message: Message, now: int) -> Answered:
    report = report_of(message)
    answered = record_answer(
        task, tool_call_id, now, status=report.status, error=report.error, ref=message.card_id
    )
    if message.card_id is None or report.hash is None:
        return answered
    return answered._replace(answer=(message.card_id, report.hash))


def answer(task: Task, command: c.Answer, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Apply the first answer; keep an early answer, or a second one, in the inbox."""
    report = Report(command.status, hash=command.content_hash)
    message = _arrived_message(task, command, "tool_result", command.tool_call_id, report, now)
    card = _arrived_card(task, command, message, "tool.result", now)
    waits, _ = known_waits(task, seen)
    other = next((w for w in waits if w.tool_call_id == command.tool_call_id), None)
    if other is not None and other.kind not in _ANSWERED_BY["tool_result"]:
        why = f"{command.tool_call_id} is a {other.kind}, which is not answered like a tool"
        return refuse(e.WrongStatus(why, code="not_a_tool_call", task_id=task.id))
    if not command.tool_call_id.startswith(f"{task.id}.s."):
        why = f"task {task.id} makes no call {command.tool_call_id}"
        return refuse(e.NotFound(why, code="no_such_call", task_id=task.id))
    return _applied_or_kept(task, message, card, now, seen)


def signal(task: Task, command: c.Signal, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Apply the signal, or keep it until the task waits for it."""
    if task.is_ended:
        return refuse(e.TaskEnded(f"task {task.id} has already ended as {task.status}", task_id=task.id))
    about = f"{task.id}.{command.name}.{command.command_id}"
    report = Report(name=command.name, hash=command.content_hash)
    message = _arrived_message(task, command, "signal", about, report, now)
    card = _arrived_card(task, command, message, "signal", now)
    return _applied_or_kept(task, message, card, now, seen)


def _applied_or_kept(task: Task, message: Message, card: Card, now: int, seen: Evidence) -> Decision:
    settled = _settled_by(task, message, now, seen)
    if settled is None:
        is_late = task.is_ended or _was_answered(task, message, seen)
        kept = replace(message, status="consumed", watchdog_error="late") if is_late else message
        return Decision(cards=(card,), messages=(kept,))
    consumed = replace(message, status="consumed")
    return replace(settled, cards=(card, *settled.cards), messages=(consumed,))


def _settled_by(task: Task, message: Message, now: int, seen: Evidence) -> Decision | None:
    """Settle the open wait that the message answers; None if there is none."""
    waits, rest = known_waits(task, seen)
    wait = _wait_for(waits, message) if task.status == s.SUSPENDED else None
    if wait is None:
        return None
    answers = {wait.tool_call_id: _answer_of(task, wait.tool_call_id, message, now)}
    return settle(task, waits, now, answers, rest)


def _was_answered(task: Task, message: Message, seen: Evidence) -> bool:
    waits, _ = known_waits(task, seen)
    return any(w.tool_call_id == message.correlation_id and w.is_answered for w in waits)


def _arrived_message(
    task: Task, command: c.TaskCommand, kind: MessageType, correlation: str, report: Report, now: int
) -> Message:
    of = correlation if kind == "tool_result" else f"{task.id}.s.signal"
    card_id = answer_id(of, command.command_id)
    return _report_message(task, command.command_id, kind, correlation, card_id, report, now)


def _arrived_card(task: Task, command: c.Answer | c.Signal, message: Message, kind: Any, now: int) -> Card:
    card_id = message.card_id or ""
    return Card(task.namespace, card_id, task.id, kind, command.content, command.content_hash, now)


def _report_message(
    task: Task,
    message_id: str,
    kind: MessageType,
    correlation: str,
    card_id: str,
    report: Report,
    now: int,
) -> Message:
    payload = packed_report(report)
    return pending_message(task, message_id, kind, correlation, now, card_id=card_id, payload=payload)


def deliver(task: Task, command: c.Deliver, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Consume a pending message, or leave it until the turn waits for it.

    A `stop` is for the task's children, and stays until they have been settled.
    """
    message = next((m for m in seen.messages if m.id == command.message_id), None)
    if message is None or message.message_type == "stop":
        return NOTHING
    if task.is_ended:
        return _skip_decision(message, "task_ended")
    settled = _settled_by(task, message, now, seen)
    if settled is None:
        late = _was_answered(task, message, seen)
        return Decision(closed=(Closing(message.id, "consumed", "late"),)) if late else NOTHING
    return replace(settled, closed=(Closing(message.id, "consumed"),))


def skip_message(task: Task, command: c.SkipMessage, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Skip the message if it is still pending."""
    message = next((m for m in seen.messages if m.id == command.message_id), None)
    return NOTHING if message is None else _skip_decision(message, command.why)


def _skip_decision(message: Message, why: str) -> Decision:
    """Mark the message as skipped, for people to see, and log why it was not delivered."""
    skipped = f.InboxSkipped(message_id=message.id, message_type=message.message_type, watchdog_error=why)
    return Decision(facts=(skipped,), closed=(Closing(message.id, "skipped", why),))


def inject_timeouts(task: Task, command: c.TaskCommand, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Settle overdue timers and approvals, and report each other overdue wait to the inbox once.

    A tool whose `tool.call` card is missing is skipped; the suspend cap remains as its net.
    """
    waits, rest = known_waits(task, seen)
    rest = rest._replace(wait_by=seen.beyond)
    overdue = [w for w in waits if w.is_open and not w.is_reported and w.deadline <= now]
    if not overdue:
        return _corrected_clock(task, next_deadline(waits, rest))
    by_time = [w for w in overdue if w.kind in _SETTLED_BY_TIME]
    others = [w for w in overdue if w.kind not in _SETTLED_BY_TIME]
    missing = [w for w in others if w.kind == "tool" and call_id(w.tool_call_id) not in seen.calls]
    skipped = {w.tool_call_id for w in missing}
    told = [w for w in others if w.tool_call_id not in skipped]
    silent = {w.tool_call_id for w in others}
    waits = tuple(replace(w, is_reported=w.is_reported or w.tool_call_id in silent) for w in waits)
    facts = _timed_out(told, missing, next_deadline(waits, rest))
    reports = [_timeout_report(task, w, now) for w in told]
    over = tuple(f.ExpiredApproval(id=w.tool_call_id) for w in by_time if w.kind == "approval")
    answers = {
        w.tool_call_id: record_answer(task, w.tool_call_id, now, status=_SETTLED_BY_TIME[w.kind])
        for w in by_time
    }
    settled = settle(task, waits, now, answers, rest)
    return Decision(
        facts=(*facts, *over, *settled.facts),
        cards=(*(card for _, card in reports), *settled.cards),
        messages=tuple(message for message, _ in reports),
    )


def _corrected_clock(task: Task, wait_by: int | None) -> Decision:
    """Set the clock to the next wait's deadline: the wait whose deadline it was has been answered."""
    if not has_wait_rows(task) or wait_by == task.wait_by:
        return NOTHING
    return Decision(facts=(f.WaitExpired(wait_by=wait_by),))


def _timed_out(told: list[Wait], missing: list[Wait], wait_by: int | None) -> tuple[f.Fact, ...]:
    """Split overdue waits over facts, so that no event grows with their number."""
    facts: list[f.Fact] = []
    for at in range(0, max(len(told), len(missing)), WAITS_PER_EVENT):
        part = slice(at, at + WAITS_PER_EVENT)
        reported = tuple(w.tool_call_id for w in told[part])
        skipped = tuple(w.tool_call_id for w in missing[part])
        facts.append(f.WaitExpired(reported=reported, skipped=skipped, wait_by=wait_by))
    return tuple(facts)


def _timeout_report(task: Task, wait: Wait, now: int) -> tuple[Message, Card]:
    """Report a timeout by a message with a card, like any answer."""
    message_id = f"{wait.tool_call_id}~timeout"
    content = _encoder.encode({"status": "timeout", "error": TOOL_TIMEOUT})
    card_id = answer_id(wait.tool_call_id, "timeout")
    message = _report_message(
        task, message_id, "timeout", wait.tool_call_id, card_id, Report("timeout", TOOL_TIMEOUT), now
    )
    return message, Card(task.namespace, card_id, task.id, "tool.result", content, fingerprint(content), now)
