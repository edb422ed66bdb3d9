"""Messages: rows of `agent_inbox`, the truth for everything that is sent to an agent."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

MessageType = Literal["turn", "tool_result", "timeout", "approval", "signal", "child", "stop"]
MessageStatus = Literal["queued", "pending", "processing", "consumed", "error", "skipped"]


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, in the order of the columns that are written. Unique by type and correlation.

    `card_id` names the content; `payload` is small JSON: the status and error of a report, a signal's name.
    """

    namespace: str
    id: str
    agent: str
    agent_key: str | None
    message_type: MessageType
    correlation_id: str
    channel: str | None
    task_id: str | None
    turn_id: str | None
    turn_epoch: int | None
    card_id: str | None
    payload: str | None
    status: MessageStatus
    created_at: int
    watchdog_error: str | None = None


MESSAGE_FIELDS: Final[tuple[str, ...]] = Message.__struct_fields__


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a message says of an answer; the answer itself is in its card."""

    status: str = "success"
    error: dict[str, Any] | None = None
    name: str | None = None


_report_decoder = msgspec.json.Decoder(Report)
_encoder = msgspec.json.Encoder(order="sorted")


def report_of(message: Message) -> Report:
    """The report that a message carries."""
    return _report_decoder.decode(message.payload) if message.payload else Report()


def packed_report(report: Report) -> str:
    """A report as a message's payload."""
    return _encoder.encode(report).decode()
