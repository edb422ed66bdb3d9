"""Messages: rows of `agent_inbox`, which hold all that is sent to an agent, and commands about them."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from endwell.model.base import Command
from endwell.model.task import Task

MessageType = Literal["turn", "tool_result", "timeout", "approval", "signal", "child", "stop", "nudge"]
MessageStatus = Literal["queued", "pending", "processing", "consumed", "error", "skipped"]


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message as it is written, in the order of the columns. Unique by type and correlation.

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
    enqueue_mode: str | None = None
    recursion_depth: int = 0
    traceparent: str | None = None
    tracestate: str | None = None
    trace_id: str | None = None
    parent_step_id: str | None = None
    source_agent_id: str | None = None
    source_step_id: str | None = None


MESSAGE_FIELDS: Final[tuple[str, ...]] = Message.__struct_fields__


class InboxRow(msgspec.Struct, frozen=True):
    """A whole row of `agent_inbox`: the message and its processing marks."""

    namespace: str
    id: str
    agent: str
    agent_key: str | None
    message_type: str
    enqueue_mode: str | None
    correlation_id: str
    recursion_depth: int
    traceparent: str | None
    tracestate: str | None
    trace_id: str | None
    parent_step_id: str | None
    source_agent_id: str | None
    source_step_id: str | None
    channel: str | None
    task_id: str | None
    turn_id: str | None
    turn_epoch: int | None
    card_id: str | None
    payload: str | None
    status: str
    attempt_id: str | None
    retry_count: int
    next_retry_at: int | None
    defer_reason: str | None
    last_error: str | None
    watchdog_error: str | None
    watchdog_at: int | None
    created_at: int
    processed_at: int | None
    archived_at: int | None


INBOX_FIELDS: Final[tuple[str, ...]] = InboxRow.__struct_fields__


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome that a message carries; `hash` is that of the card with the answer itself."""

    status: str = "success"
    error: dict[str, Any] | None = None
    name: str | None = None
    hash: str | None = None


_report_decoder = msgspec.json.Decoder(Report)
_encoder = msgspec.json.Encoder(order="sorted")


def pending_message(
    task: Task,
    message_id: str,
    kind: MessageType,
    correlation: str,
    now: int,
    *,
    card_id: str | None = None,
    payload: str | None = None,
) -> Message:
    """A new message to the task, in its current turn."""
    return Message(
        namespace=task.namespace,
        id=message_id,
        agent=task.agent,
        agent_key=task.agent_key,
        message_type=kind,
        correlation_id=correlation,
        channel=task.channel,
        task_id=task.id,
        turn_id=task.turn_id,
        turn_epoch=task.epoch,
        card_id=card_id,
        payload=payload,
        status="pending",
        created_at=now,
    )


def report_of(message: Message) -> Report:
    """The report that a message carries."""
    return _report_decoder.decode(message.payload) if message.payload else Report()


def packed_report(report: Report) -> str:
    """A report as a message's payload."""
    return _encoder.encode(report).decode()


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace that a W3C `traceparent` belongs to."""
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) == 4 else None


class TakeResumes(Command, frozen=True, kw_only=True):
    """Reserve messages for delivery by this worker; other workers leave them alone until the lease is over.

    Each delivery is counted in the inbox row before it is tried, so that one which kills its process counts.
    """

    message_ids: tuple[str, ...]
    lease: int


class RequeueResumes(Command, frozen=True, kw_only=True):
    """Release messages whose delivery lease lapsed."""


class CloseMessages(Command, frozen=True, kw_only=True):
    """Close messages that need no more attention; `why` says why they were not consumed."""

    message_ids: tuple[str, ...]
    why: str | None
    status: MessageStatus = "skipped"


class RequeueMessages(Command, frozen=True, kw_only=True):
    """Make messages pending again whose processor died, if they have been processing since `before`."""

    message_ids: tuple[str, ...]
    before: int


class WakeAgents(Command, frozen=True, kw_only=True):
    """Ring for agents that have messages in their inbox: `coder` or, on a channel, `coder/ops`."""

    agents: tuple[str, ...]
