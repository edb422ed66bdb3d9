"""The result of a wait as agent code sees it: a value, or an exception that says what went wrong."""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.errors import (
    ApprovalExpired,
    ApprovalRejected,
    CallFailed,
    ReplayMismatch,
    SignalTimeout,
    ToolFailed,
    ToolTimeout,
)
from endwell.model import content
from endwell.model.card import Card, child_id, deliverable_id, draft_in
from endwell.model.typed import Shape
from endwell.turn.recorder import Recorder

SUCCESS = "success"
TIMEOUT = "timeout"
_ERROR_LIMIT = 500


class Approved(msgspec.Struct, frozen=True):
    """Who agreed, and when (microseconds since 1970, UTC)."""

    by: tuple[str, ...]
    at: int


class WaitRecord(msgspec.Struct, frozen=True):
    """The record of a wait: how it was answered, and which card holds the answer."""

    status: str
    ref: str | None = None
    error: dict[str, Any] | None = None
    by: tuple[str, ...] = ()
    shown_hash: str | None = None


_decoder = msgspec.json.Decoder(WaitRecord)


async def _answer_in(recorder: Recorder, record: WaitRecord) -> Any:
    if record.ref is None:
        return None
    return content.decode_stored((await recorder.card(record.ref)).content)


async def tool_result(recorder: Recorder, name: str, card: Card, shape: Shape) -> Any:
    record = _decoder.decode(card.content)
    value = await _answer_in(recorder, record)
    if record.status == SUCCESS:
        return shape.check(value, "result")
    if record.status == TIMEOUT:
        raise ToolTimeout(f"tool {name} did not answer in time", error=record.error)
    error = record.error or _error_in(value)
    raise ToolFailed(f"tool {name} answered {record.status}{_as_suffix(error)}", error=error)


async def call_result(recorder: Recorder, name: str, card: Card, shape: Shape) -> Any:
    record = _decoder.decode(card.content)
    value = await _answer_in(recorder, record)
    if record.status == SUCCESS:
        return shape.check(value, "result")
    child = child_id(card.id)
    error = record.error or _error_in(value)
    raise CallFailed(
        f"the call of {name} ended as {record.status}{_as_suffix(error)}",
        status=record.status,
        error=error,
        deliverable=await _with_draft(recorder, value) if record.ref == deliverable_id(child) else None,
        task_id=child,
    )


async def _with_draft(recorder: Recorder, report: Any) -> Any:
    """The failure report of a child with the content of its draft, if it kept one."""
    card_id = draft_in(report)
    if card_id is None:
        return report
    return {**report, "draft": content.decode_stored((await recorder.card(card_id)).content)}


async def signal_result(recorder: Recorder, name: str, card: Card, shape: Shape) -> Any:
    record = _decoder.decode(card.content)
    if record.status == TIMEOUT:
        raise SignalTimeout(f"the signal {name} did not come in time")
    return shape.check(await _answer_in(recorder, record), "signal")


def approval_result(question: str, card: Card, shown_hash: str) -> Approved:
    """Who agreed to exactly this; a rejection or an expired request is raised."""
    record = _decoder.decode(card.content)
    if record.shown_hash not in (None, shown_hash):
        raise ReplayMismatch("what was approved is not what is asked for now")
    asked = content.clean_text(question, 200)
    if record.status == "rejected":
        raise ApprovalRejected(f"{', '.join(record.by)} declined: {asked}")
    if record.status == "expired":
        raise ApprovalExpired(f"the approval expired without a decision: {asked}")
    return Approved(record.by, card.created_at)


def _error_in(value: Any) -> Any:
    """The error of a failure that came as an answer: of `{"status", "error"}`, or the answer itself."""
    return value["error"] if isinstance(value, dict) and "error" in value else value


def _as_suffix(error: Any) -> str:
    message = error.get("message") or error.get("code") if isinstance(error, dict) else error
    return f": {_last_part(content.safe_str(message))}" if message else ""


def _last_part(text: str) -> str:
    """The end of an error that a chain of calls passed up, because the end names the cause."""
    cut = len(text) - _ERROR_LIMIT
    return content.clean_text(
        text if cut <= 0 else f"({cut} characters cut) … {text[cut:]}", 2 * _ERROR_LIMIT
    )
