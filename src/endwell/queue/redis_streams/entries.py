"""What an entry of a stream says, read with suspicion: whoever reaches the server can write anything.

Reading gives a value or a `Malformed` with the reason; it never raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from endwell.model.content import MAX_BYTES, clean_text
from endwell.model.task import Task
from endwell.queue.contract import Delivery

TASK_FIELDS: Final = (
    "task_id",
    "run_id",
    "tool_name",
    "payload",
    "workflow_id",
    "step_index",
    "retry_count",
    "idempotency_key",
    "turn",
    "epoch",
)
REQUIRED_TASK_FIELDS: Final = ("task_id", "tool_name", "payload", "turn", "epoch")
RESULT_FIELDS: Final = (
    "task_id",
    "status",
    "turn",
    "epoch",
    "worker_id",
    "message_id",
    "attempt",
    "output",
    "error",
    "tool_name",
)
REQUIRED_RESULT_FIELDS: Final = ("task_id", "status", "turn", "epoch", "worker_id", "message_id")
RESULT_STATUSES: Final = ("claimed", "succeeded", "failed", "passed")
DLQ_FIELDS: Final = (
    "task_id",
    "tool_name",
    "payload",
    "error",
    "retry_count",
    "failed_at",
    "reason",
    "fingerprint",
    "message_id",
)
MAX_ENTRY_BYTES: Final = 2 * MAX_BYTES
"""A payload has at most half of this; whatever is larger was not put there by an orchestrator."""
_KEPT: Final = 1000
"""How much of a bad field a dead letter shows."""

RawFields = Sequence[bytes] | None
"""Names and values in turn, as Redis sends them; None where the entry itself is gone."""


class Malformed(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that says nothing usable, and why."""

    message_id: str
    reason: str
    problem: str
    shown: dict[str, str] = {}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a foreign worker says about a turn."""

    entry_id: str
    task_id: str
    status: str
    turn_id: str
    epoch: int
    worker_id: str
    message_id: str
    attempt: str = ""
    output: str = ""
    error: str = ""
    tool_name: str = ""


def task_entry(task: Task, payload: bytes) -> list[bytes | str | int]:
    """A dispatched turn as the fields of an entry, in the order of the protocol."""
    turn = task.turn_id or ""
    values: tuple[bytes | str | int, ...] = (
        task.id,
        turn,
        task.agent,
        payload,
        task.parent_id or task.id,
        task.turn_number,
        task.retry_count,
        task.idempotency_key or task.id,
        turn,
        task.epoch,
    )
    entry: list[bytes | str | int] = []
    for name, value in zip(TASK_FIELDS, values, strict=True):
        entry += (name, value)
    return entry


def read_task(message_id: str, raw: RawFields) -> Delivery | Malformed:
    """A delivery, or what is wrong with it."""
    fields = _read(message_id, raw, REQUIRED_TASK_FIELDS)
    if isinstance(fields, Malformed):
        return fields
    epoch = _epoch(fields)
    if epoch is None:
        return _malformed(message_id, raw, "bad_field", "epoch must be a whole number")
    return Delivery(
        message_id=message_id,
        task_id=fields["task_id"],
        turn_id=fields["turn"],
        epoch=epoch,
        agent=fields["tool_name"],
        payload=fields["payload"].encode(),
    )


def read_result(entry_id: str, raw: RawFields) -> Result | Malformed:
    """A foreign worker's word, or what is wrong with it."""
    fields = _read(entry_id, raw, REQUIRED_RESULT_FIELDS)
    if isinstance(fields, Malformed):
        return fields
    epoch = _epoch(fields)
    if epoch is None:
        return _malformed(entry_id, raw, "bad_field", "epoch must be a whole number")
    if fields["status"] not in RESULT_STATUSES:
        return _malformed(entry_id, raw, "bad_field", f"status must be one of {', '.join(RESULT_STATUSES)}")
    return Result(
        entry_id=entry_id,
        task_id=fields["task_id"],
        status=fields["status"],
        turn_id=fields["turn"],
        epoch=epoch,
        worker_id=fields["worker_id"],
        message_id=fields["message_id"],
        attempt=fields.get("attempt", ""),
        output=fields.get("output", ""),
        error=fields.get("error", ""),
        tool_name=fields.get("tool_name", ""),
    )


def dlq_entry(said: Mapping[str, object]) -> list[str]:
    """A dead letter as the fields of an entry; what is not known stays empty."""
    return [part for name in DLQ_FIELDS for part in (name, str(said.get(name, "")))]


def malformed_letter(bad: Malformed, failed_at: str) -> list[str]:
    """An entry that nobody can use, as a dead letter: what could be read of it, and the reason."""
    return dlq_entry(
        {
            **{name: bad.shown.get(name, "") for name in ("task_id", "tool_name", "payload")},
            "retry_count": bad.shown.get("retry_count", "0"),
            "error": bad.problem,
            "failed_at": failed_at,
            "reason": bad.reason,
            "message_id": bad.message_id,
        }
    )


def _read(message_id: str, raw: RawFields, required: Sequence[str]) -> dict[str, str] | Malformed:
    if raw is None:
        return _malformed(message_id, raw, "deleted_entry", "the entry was deleted before it was read")
    size = sum(map(len, raw))
    if size > MAX_ENTRY_BYTES:
        why = f"the entry has {size:,} bytes; {MAX_ENTRY_BYTES:,} are allowed"
        return _malformed(message_id, raw, "oversized_entry", why)
    try:
        texts = [part.decode() for part in raw]
    except UnicodeDecodeError:
        return _malformed(message_id, raw, "not_utf8", "a field is not UTF-8")
    fields = dict(zip(texts[::2], texts[1::2], strict=False))
    missing = [name for name in required if not fields.get(name)]
    if missing:
        return _malformed(message_id, raw, "missing_fields", f"missing: {', '.join(missing)}")
    return fields


def _epoch(fields: Mapping[str, str]) -> int | None:
    text = fields["epoch"]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


def _malformed(message_id: str, raw: RawFields, reason: str, problem: str) -> Malformed:
    texts = [clean_text(part[:_KEPT].decode(errors="replace"), _KEPT) for part in raw or ()]
    shown = dict(zip(texts[::2], texts[1::2], strict=False))
    return Malformed(message_id=message_id, reason=reason, problem=problem, shown=shown)
