"""Waits, messages and families: rules for every step."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.card import call_id
from endwell.model.inside import family_of, inside_of
from endwell.model.message import Message, report_of
from endwell.model.task import has_wait_rows
from endwell.model.wait import Wait
from tests.machine.walk.step import Step
from tests.machine.walk.violation import must

SETTLED_BY_TIME: Final = ("timer", "approval")
# which waits a message of the inbox may settle; nothing in an inbox decides on an approval
SETTLES: Final[dict[str, tuple[str, ...]]] = {
    "tool_result": ("tool", "call"),
    "child": ("tool", "call"),
    "timeout": ("tool", "call", "signal"),
    "signal": ("signal",),
}


def answers(message: Message, wait: Wait) -> bool:
    """Whether the message is an answer to this wait."""
    if wait.kind not in SETTLES.get(message.message_type, ()):
        return False
    if message.message_type == "signal":
        return report_of(message).name == wait.name
    return message.correlation_id == wait.tool_call_id


def a_suspension_waits_for_what_was_called(step: Step) -> None:
    if not step.count(f.TaskSuspended) or not isinstance(step.command, c.Suspend):
        return
    cut = step.before.ends_by
    called = [(call.tool_call_id, call.kind, min(step.now + call.within, cut)) for call in step.command.calls]
    ids = {call.tool_call_id for call in step.command.calls}
    waits = [wait for wait in step.scene_after.waits if wait.tool_call_id in ids]
    waited = [(wait.tool_call_id, wait.kind, wait.deadline) for wait in waits]
    must(waited == called, "a turn waits for something else than it called for")
    for _, kind, deadline in called:
        must(kind not in SETTLED_BY_TIME or deadline < cut, f"a {kind} that cannot end before ends_by")
    if step.after.status == "suspended":
        for wait in step.scene_after.waits:
            left = wait.is_open and any(answers(message, wait) for message in step.scene_after.inbox)
            must(not left, "an answer that was there before was not looked at")


def each_wait_is_settled_once_and_alone(step: Step) -> None:
    if step.before.status != "suspended" or step.after.waits is None:
        return
    settled = [fact.tool_call_id for fact in step.decision.facts if isinstance(fact, f.WaitAnswered)]
    must(len(settled) == len(set(settled)), "a wait was settled twice at once")
    for old, new in zip(step.scene_before.waits, step.scene_after.waits, strict=True):
        must(new.deadline == old.deadline, "a wait's deadline was moved by its sibling")
        if old.is_open and old.tool_call_id in settled:
            must(_may_be_settled(step, old), f"{type(step.command).__name__} settled a {old.kind}")
            must(not new.is_open, "a settled wait is still open")
        elif step.count(f.TaskBlocked) and old.is_open and has_wait_rows(step.before):
            must(new == replace(old, wait_status="dropped"), "a hold left a wait open")
        elif new != old:
            is_told = new == replace(old, is_reported=True) and not old.is_reported
            must(is_told and old.deadline <= step.now, "a wait was changed by something else than its time")
            must(step.count(f.WaitExpired) == 1, "a wait counts as reported without a report")


def _may_be_settled(step: Step, wait: Wait) -> bool:
    match step.command:
        case c.Answer(tool_call_id=call):
            return call == wait.tool_call_id and wait.kind in SETTLES["tool_result"]
        case c.Signal(name=name):
            return wait.kind == "signal" and wait.name == name
        case c.Deliver(message_id=message_id):
            return any(m.id == message_id and answers(m, wait) for m in step.scene_before.inbox)
        case c.Approve(approval_id=asked) | c.Reject(approval_id=asked):
            return wait.kind == "approval" and asked == wait.tool_call_id
        case c.InjectTimeout() | c.ClockFired():
            return wait.kind in SETTLED_BY_TIME and wait.deadline <= step.now
    return False


def an_overdue_wait_is_reported_once(step: Step) -> None:
    is_injection = isinstance(step.command, c.InjectTimeout) or step.rule == "inject_timeout"
    reports = [message for message in step.decision.messages if message.message_type == "timeout"]
    told = [message.correlation_id for message in reports]
    if not is_injection:
        must(not told, "a timeout was reported by something else than its time")
        return
    has_rows = has_wait_rows(step.before)
    looked_at = step.seen.waits if has_rows else step.scene_before.waits
    overdue = [w for w in looked_at if w.is_open and w.deadline <= step.now]
    silent = [w for w in overdue if w.kind not in SETTLED_BY_TIME and not w.is_reported]
    has_card = {w.tool_call_id for w in silent if w.kind != "tool" or _card_is_there(step, w)}
    must(sorted(told) == sorted(has_card), f"{told} reported instead of {sorted(has_card)}")
    for message in reports:
        report = report_of(message)
        must((message.status, report.status) == ("pending", "timeout"), "a strange report")
        must((report.error or {}).get("code") == "tool_timeout", "a report without its code")
    still = [w for w in step.scene_after.waits if w.is_open and w.deadline <= step.now and not w.is_reported]
    is_due = has_rows and step.after.wait_by is not None and step.after.wait_by <= step.now
    must(not still or is_due, "an overdue wait was neither settled nor reported nor skipped")


def _card_is_there(step: Step, wait: Wait) -> bool:
    return call_id(wait.tool_call_id) in step.seen.calls


def a_turn_goes_on_when_nothing_is_waited_for(step: Step) -> None:
    if step.count(f.TaskResumed):
        must(not any(wait.is_open for wait in step.scene_after.waits), "resumed although it still waits")


def nothing_that_arrives_is_lost(step: Step) -> None:
    """An answer is applied, kept for later, or acknowledged as late; a message leaves the inbox once."""
    if isinstance(step.command, c.Answer | c.Signal) and step.decision.refusal is None:
        _it_is_kept(step)
    pending = {message.id: message for message in step.scene_before.inbox}
    closed = {closing.message_id: closing for closing in step.decision.closed}
    must(set(closed) <= set(pending), "a message was closed that was not there")
    left = {message.id for message in step.scene_after.inbox}
    must(all(each in closed or each in left for each in pending), "a message was lost")
    for message_id, closing in closed.items():
        match (closing.status, closing.why):
            case ("consumed", None):
                must(_was_applied(step, pending[message_id]), "a message was consumed without effect")
            case ("consumed", "late"):
                must(_is_late(step, pending[message_id]), "a message that came in time was called late")
            case ("skipped", _):
                asked = isinstance(step.command, c.SkipMessage)
                must(asked or step.before.is_ended, "a message of a live task was skipped")
                must(step.count(f.InboxSkipped) == 1, "a message was skipped without a fact")
            case strange:
                must(False, f"a message was closed as {strange}")


def _it_is_kept(step: Step) -> None:
    must(len(step.decision.messages) == 1, "an answer without its message")
    message = step.decision.messages[0]
    must(message.card_id in {card.id for card in step.decision.cards}, "an answer whose content is lost")
    if step.count(f.WaitAnswered):
        must(
            (message.status, message.watchdog_error) == ("consumed", None),
            "an applied answer is not consumed",
        )
    elif _is_late(step, message):
        must(
            (message.status, message.watchdog_error) == ("consumed", "late"),
            "a late answer is not told apart",
        )
    else:
        must(message.status == "pending", "an early answer is not kept for later")


def _was_applied(step: Step, message: Message) -> bool:
    if message.message_type == "nudge":
        return isinstance(step.command, c.HearNudges) and step.holds
    settled = {fact.tool_call_id for fact in step.decision.facts if isinstance(fact, f.WaitAnswered)}
    return any(wait.tool_call_id in settled and answers(message, wait) for wait in step.scene_after.waits)


def _is_late(step: Step, message: Message) -> bool:
    waits = step.scene_before.waits
    is_answered = any(w.tool_call_id == message.correlation_id and w.is_answered for w in waits)
    return step.before.is_ended or is_answered


def an_end_is_told_to_the_family(step: Step) -> None:
    told = [m for m in step.decision.messages if m.message_type in ("child", "stop")]
    if not step.ends_the_task:
        must(not told, "the family was told of an end that is none")
        return
    call = family_of(step.before).parent_call
    expected = [("child", step.before.parent_id, call)] if call is not None else []
    if inside_of(step.before).children:
        expected.append(("stop", step.before.id, step.before.id))
    said = [(m.message_type, m.task_id, m.correlation_id) for m in told]
    must(said == expected, f"the family was told {said}")
    must(all(m.status == "pending" for m in told), "news of an end that is not pending")
