"""What a wait came to, as agent code sees it: a value, or an exception that says what went wrong."""

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
_SAID_LIMIT = 500


class Approved(msgspec.Struct, frozen=True):
    """Who agreed, and when (microseconds since 1970, UTC)."""

    by: tuple[str, ...]
    at: int


class Record(msgspec.Struct, frozen=True):
    """The record of a wait: how it was answered, and which card holds the answer."""

    status: str
    ref: str | None = None
    error: dict[str, Any] | None = None
    by: tuple[str, ...] = ()
    shown_hash: str | None = None


_decoder = msgspec.json.Decoder(Record)


def record_of(card: Card) -> Record:
    """The record that a card holds."""
    return _decoder.decode(card.content)


async def answer(bench: Recorder, record: Record) -> Any:
    """The answer itself, as plain JSON values."""
    if record.ref is None:
        return None
    return content.decode_stored((await bench.card(record.ref)).content)


async def tool_value(bench: Recorder, name: str, record: Record, shape: Shape) -> Any:
    """What a tool answered."""
    value = await answer(bench, record)
    if record.status == SUCCESS:
        return shape.check(value, "result")
    if record.status == TIMEOUT:
        raise ToolTimeout(f"tool {name} did not answer in time", error=record.error)
    error = record.error or _reported(value)
    raise ToolFailed(f"tool {name} answered {record.status}{_said(error)}", error=error)


async def call_value(bench: Recorder, name: str, step_record: str, record: Record, shape: Shape) -> Any:
    """What a called agent returned."""
    value = await answer(bench, record)
    if record.status == SUCCESS:
        return shape.check(value, "result")
    child = child_id(step_record)
    error = record.error or _reported(value)
    raise CallFailed(
        f"the call of {name} ended as {record.status}{_said(error)}",
        status=record.status,
        error=error,
        deliverable=await _with_draft(bench, value) if record.ref == deliverable_id(child) else None,
        task_id=child,
    )


async def _with_draft(bench: Recorder, report: Any) -> Any:
    """What the child had drafted belongs to what it leaves behind."""
    card_id = draft_in(report)
    if card_id is None:
        return report
    return {**report, "draft": content.decode_stored((await bench.card(card_id)).content)}


async def signal_value(bench: Recorder, name: str, record: Record, shape: Shape) -> Any:
    """What a signal said."""
    if record.status == TIMEOUT:
        raise SignalTimeout(f"the signal {name} did not come in time")
    return shape.check(await answer(bench, record), "signal")


def approval_value(question: str, card: Card, record: Record, shown_hash: str) -> Approved:
    """Who agreed to exactly this; whoever declined, or nobody, is an exception."""
    if record.shown_hash not in (None, shown_hash):
        raise ReplayMismatch("what was approved is not what is asked for now")
    asked = content.clean_text(question, 200)
    if record.status == "rejected":
        raise ApprovalRejected(f"{', '.join(record.by)} declined: {asked}")
    if record.status == "expired":
        raise ApprovalExpired(f"nobody decided in time: {asked}")
    return Approved(record.by, card.created_at)


def _reported(value: Any) -> Any:
    """A failure that came as an answer: `{"status", "error"}`, or whatever the tool said."""
    return value["error"] if isinstance(value, dict) and "error" in value else value


def _said(error: Any) -> str:
    message = error.get("message") or error.get("code") if isinstance(error, dict) else error
    return f": {_end_of(content.safe_str(message))}" if message else ""


def _end_of(text: str) -> str:
    """Of what a chain of calls passed up, the end names the cause."""
    cut = len(text) - _SAID_LIMIT
    return content.clean_text(text if cut <= 0 else f"({cut} characters cut) … {text[cut:]}", 2 * _SAID_LIMIT)
