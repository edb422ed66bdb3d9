"""What an entry of a stream says, read with suspicion: whoever reaches the server can write anything.

Reading gives a value or a `Malformed` with the reason; it never raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from endwell.machine.endings import fingerprint
from endwell.model.content import MAX_BYTES, clean_text
from endwell.model.task import ErrorInfo
from endwell.streams.contract import Delivery
from endwell.streams.protocol import RESULT, TASK

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
    "note",
    "event_id",
)
_FREE_TEXTS: Final = (b"output", b"error", b"note")
REQUIRED_RESULT_FIELDS: Final = ("task_id", "status", "turn", "epoch", "worker_id", "message_id")
LEAVING: Final = "leaving"
RESULT_STATUSES: Final = ("claimed", "succeeded", "failed", "progress", "returned", "passed", LEAVING)
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
    "stream",
)
MAX_ENTRY_BYTES: Final = 2 * MAX_BYTES
"""A payload has at most half of this; whatever is larger was not put there by an orchestrator."""
_KEPT: Final = 1000
"""How much of a field a dead letter shows that cannot be kept as it came."""
CUT: Final = ("not_utf8", "oversized_entry", "deleted_entry")
"""Of entries that are unreadable for these reasons a dead letter has only what can be shown."""

_PUT_NAMES: Final = [name.encode() for name in TASK_FIELDS]
_NAMES: Final = ("task_id", "tool_name", "turn", "worker_id", "attempt")
LONGEST_NAME: Final = 300
_WHOLE: Final = re.compile(r"[0-9]{1,17}")
_ENTRY_ID: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")

_json: Final = msgspec.json.Decoder(msgspec.Raw)

RawFields = Sequence[bytes] | None
"""Names and values in turn, as Redis sends them; None where the entry itself is gone."""


class Malformed(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that says nothing usable, and why."""

    stream: str
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
    output: bytes = b""
    error: str = ""
    tool_name: str = ""
    note: str = ""
    event_id: str = ""

    @property
    def is_published(self) -> bool:
        """Whether the orchestrator published it, for others to read."""
        return bool(self.event_id)


class Carried(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn that is offered on the stream: what its entry says."""

    task_id: str
    turn_id: str
    turn_number: int
    epoch: int
    agent: str
    parent_id: str | None
    idempotency_key: str | None
    retry_count: int
    payload: bytes

    @property
    def key(self) -> tuple[str, int]:
        """Turn and epoch: which offer it is."""
        return self.turn_id, self.epoch


def task_entry(turn: Carried) -> list[bytes | str | int]:
    """A turn as the fields of an entry, in the order of the protocol."""
    values: tuple[bytes | str | int, ...] = (
        turn.task_id,
        turn.turn_id,
        turn.agent,
        turn.payload,
        turn.parent_id or turn.task_id,
        turn.turn_number,
        turn.retry_count,
        turn.idempotency_key or turn.task_id,
        turn.turn_id,
        turn.epoch,
    )
    entry: list[bytes | str | int] = []
    for name, value in zip(TASK_FIELDS, values, strict=True):
        entry += (name, value)
    return entry


def read_task(message_id: str, raw: RawFields) -> Delivery | Malformed:
    """A delivery, or what is wrong with it."""
    delivery = _as_put(message_id, raw) if raw is not None else None
    if delivery is not None:
        return delivery
    fields = _read(TASK, message_id, raw, REQUIRED_TASK_FIELDS)
    if isinstance(fields, Malformed):
        return fields
    wrong = _wrong(fields)
    if wrong is not None:
        return _malformed(TASK, message_id, raw, "bad_field", wrong)
    if not _is_json(fields["payload"].encode()):
        return _malformed(TASK, message_id, raw, "bad_payload", "payload is not JSON")
    return Delivery(
        message_id=message_id,
        task_id=fields["task_id"],
        turn_id=fields["turn"],
        epoch=int(fields["epoch"]),
        agent=fields["tool_name"],
        payload=fields["payload"].encode(),
    )


def _as_put(message_id: str, raw: Sequence[bytes]) -> Delivery | None:
    """An entry as our orchestrator puts it, which nearly all are; whatever else is looked at with care."""
    if len(raw) != 2 * len(_PUT_NAMES) or raw[::2] != _PUT_NAMES:
        return None
    values = raw[1::2]
    said = b"\n".join(values)
    try:
        said.decode()  # all of it at once
    except UnicodeDecodeError:
        return None
    task_id, agent, payload = values[0].decode(), values[2].decode(), values[3]
    turn, epoch = values[-2].decode(), values[-1].decode()
    are_plain = is_plain(task_id) and is_plain(turn) and is_plain(agent)
    if not are_plain or not is_whole(epoch) or len(said) > MAX_BYTES or not _is_json(payload):
        return None
    return Delivery(
        message_id=message_id,
        task_id=task_id,
        turn_id=turn,
        epoch=int(epoch),
        agent=agent,
        payload=payload,
    )


def _is_json(payload: bytes) -> bool:
    """Whether the text is one JSON value: its structure is checked, no value is built."""
    try:
        _json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def read_result(entry_id: str, raw: RawFields) -> Result | Malformed:
    """A foreign worker's report, or what is wrong with it.

    Its free texts never make it unreadable: a turn whose result cannot be kept must end, not be done again.
    """
    raw, free = _separate_free_texts(raw)
    fields = _read(RESULT, entry_id, raw, ("status",))
    if isinstance(fields, Malformed):
        return fields
    if fields.get("event_id"):
        return Result(
            entry_id=entry_id,
            task_id=fields.get("task_id", ""),
            status=fields["status"],
            turn_id="",
            epoch=0,
            worker_id="",
            message_id="0-0",
            event_id=fields["event_id"],
        )
    required = ("worker_id",) if fields["status"] == LEAVING else REQUIRED_RESULT_FIELDS
    fields = _read(RESULT, entry_id, raw, required)
    if isinstance(fields, Malformed):
        return fields
    if fields["status"] == LEAVING:
        fields = {"task_id": "", "turn": "", "epoch": "0", "message_id": "0-0", **fields}
    wrong = _wrong(fields)
    if wrong is not None:
        return _malformed(RESULT, entry_id, raw, "bad_field", wrong)
    return Result(
        entry_id=entry_id,
        task_id=fields["task_id"],
        status=fields["status"],
        turn_id=fields["turn"],
        epoch=int(fields["epoch"]),
        worker_id=fields["worker_id"],
        message_id=fields["message_id"],
        attempt=fields.get("attempt", ""),
        output=free.get(b"output", b""),
        error=_readable(free.get(b"error", b"")),
        tool_name=fields.get("tool_name", ""),
        note=_readable(free.get(b"note", b"")),
    )


def _separate_free_texts(raw: RawFields) -> tuple[RawFields, dict[bytes, bytes]]:
    if raw is None:
        return None, {}
    pairs = list(zip(raw[::2], raw[1::2], strict=False))
    named = [part for name, value in pairs if name not in _FREE_TEXTS for part in (name, value)]
    return named, {name: value for name, value in pairs if name in _FREE_TEXTS}


def _readable(text: bytes) -> str:
    return text[:MAX_BYTES].decode(errors="replace")


def result_entry(said: Mapping[str, bytes | str | int]) -> list[bytes | str | int]:
    """A published result as the fields of an entry; what is not known is left out."""
    found = ((name, said.get(name, "")) for name in RESULT_FIELDS)
    return [part for name, value in found if value != "" and value != b"" for part in (name, value)]


def dlq_entry(said: Mapping[str, object]) -> list[str]:
    """A dead letter as the fields of an entry; what is not known stays empty."""
    return [part for name in DLQ_FIELDS for part in (name, str(said.get(name, "")))]


def malformed_letter(bad: Malformed, failed_at: str) -> list[str]:
    """An entry that nobody can use, as a dead letter: what could be read of it, and the reason."""
    said = {name: bad.shown.get(name, "") for name in ("task_id", "tool_name", "payload")}
    problem = ErrorInfo(code=bad.reason, message=bad.problem)
    return dlq_entry(
        {
            **said,
            "retry_count": bad.shown.get("retry_count", "0"),
            "error": bad.problem,
            "failed_at": failed_at,
            "reason": bad.reason,
            "fingerprint": fingerprint(said["tool_name"], bad.reason, problem),
            "message_id": bad.message_id,
            "stream": bad.stream,
        }
    )


def _read(
    stream: str, message_id: str, raw: RawFields, required: Sequence[str]
) -> dict[str, str] | Malformed:
    if raw is None:
        why = "the entry was deleted before it was read"
        return _malformed(stream, message_id, raw, "deleted_entry", why)
    size = sum(map(len, raw))
    if size > MAX_ENTRY_BYTES:
        why = f"the entry has {size:,} bytes; {MAX_ENTRY_BYTES:,} are allowed"
        return _malformed(stream, message_id, raw, "oversized_entry", why)
    try:
        texts = [part.decode() for part in raw]
    except UnicodeDecodeError:
        return _malformed(stream, message_id, raw, "not_utf8", "a field is not UTF-8")
    fields = dict(zip(texts[::2], texts[1::2], strict=False))
    missing = [name for name in required if not fields.get(name)]
    if missing:
        return _malformed(stream, message_id, raw, "missing_fields", f"missing: {', '.join(missing)}")
    return fields


def _wrong(fields: Mapping[str, str]) -> str | None:
    """What a field holds that no orchestrator would have put there, and no store or server could take."""
    for name in _NAMES:
        if not is_plain(fields.get(name, "-") or "-"):
            return f"{name} must be at most {LONGEST_NAME} characters that can be printed"
    if not is_whole(fields["epoch"]):
        return "epoch must be a whole number"
    if not _ENTRY_ID.fullmatch(fields.get("message_id", "0-0")):
        return "message_id must be the id of an entry"
    if fields.get("status", RESULT_STATUSES[0]) not in RESULT_STATUSES:
        return f"status must be one of {', '.join(RESULT_STATUSES)}"
    return None


def is_plain(name: str) -> bool:
    """Whether every store and every server can take it as a name."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


def is_whole(text: str) -> bool:
    """Whether it is a whole number that every store can take."""
    return _WHOLE.fullmatch(text) is not None


def _malformed(stream: str, message_id: str, raw: RawFields, reason: str, problem: str) -> Malformed:
    """What can be read is kept whole: an entry that lacks a field can be replayed with it."""
    if reason in CUT:
        texts = [clean_text(part[:_KEPT].decode(errors="replace"), _KEPT) for part in raw or ()]
    else:
        texts = [part.decode() for part in raw or ()]
    shown = dict(zip(texts[::2], texts[1::2], strict=False))
    return Malformed(stream=stream, message_id=message_id, reason=reason, problem=problem, shown=shown)
