"""What an entry of a stream says. Any client of the server can write one, so reading trusts nothing.

Reading returns a value or a `Malformed` entry with the reason; it never raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from endwell.machine.claiming import OfferName
from endwell.machine.endings import fingerprint
from endwell.model.content import MAX_BYTES, clean_text
from endwell.model.task import ErrorInfo, Task
from endwell.store.reads.streams import ReadyTurn
from endwell.streams.protocol import (
    DLQ_FIELDS,
    LEAVING,
    REPORT_FIELDS,
    REPORT_STATUSES,
    REQUIRED_REPORT_FIELDS,
    REQUIRED_TASK_FIELDS,
    RESULT,
    TASK,
    TASK_FIELDS,
)

MAX_ENTRY_BYTES: Final = 2 * MAX_BYTES
"""A payload has at most half of this, so a larger entry was not written by an orchestrator."""
CUT_REASONS: Final = ("not_utf8", "oversized_entry", "deleted_entry")
"""The dead letter of an entry with one of these defects shows only a part of it."""
_SHOWN_CHARACTERS: Final = 1000
"""How much of each field such a dead letter shows."""
LONGEST_NAME: Final = 300

_NAME_FIELDS: Final = ("task_id", "tool_name", "turn", "worker_id", "attempt")
_FREE_TEXTS: Final = (b"output", b"error", b"note")
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,17}")
_ENTRY_ID: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")
_json: Final = msgspec.json.Decoder(msgspec.Raw)

RawFields = Sequence[bytes] | None
"""Names and values in turn, as Redis sends them; None where the entry itself is gone."""
OfferKey = tuple[str, int]
"""A turn and its epoch, which name one offer."""


class Malformed(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that cannot be used, and why."""

    stream: str
    message_id: str
    reason: str
    problem: str
    shown: dict[str, str] = {}


class OfferEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The offer of a turn, as its entry on the stream says it."""

    task_id: str
    turn_id: str
    turn_number: int
    epoch: int
    agent: str
    parent_id: str | None
    idempotency_key: str | None
    retry_count: int
    payload: bytes

    @classmethod
    def from_task(cls, task: Task | ReadyTurn, turn: OfferName, payload: bytes) -> OfferEntry:
        """The offer of a task's turn, under the name of that turn."""
        return cls(
            task_id=task.id,
            turn_id=turn.turn_id,
            turn_number=turn.number,
            epoch=turn.epoch,
            agent=task.agent,
            parent_id=task.parent_id,
            idempotency_key=task.idempotency_key,
            retry_count=task.retry_count,
            payload=payload,
        )

    @property
    def key(self) -> OfferKey:
        """Which offer it is."""
        return self.turn_id, self.epoch


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An offer as a worker reads it: the turn, and its payload."""

    message_id: str
    task_id: str
    turn_id: str
    epoch: int
    agent: str
    payload: bytes

    @property
    def full_key(self) -> tuple[str, str, int]:
        """The task, and the offer of it."""
        return self.task_id, self.turn_id, self.epoch


class ReportEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a foreign worker reports about a turn, or a result that the orchestrator has published."""

    entry_id: str
    status: str
    task_id: str = ""
    turn_id: str = ""
    epoch: int = 0
    worker_id: str = ""
    message_id: str = "0-0"
    attempt: str = ""
    output: bytes = b""
    error: str = ""
    tool_name: str = ""
    note: str = ""
    event_id: str = ""

    @property
    def is_published(self) -> bool:
        """Whether the orchestrator published it, for other programs."""
        return bool(self.event_id)

    @property
    def full_key(self) -> tuple[str, str, int]:
        """The task that it is about, and the offer of it."""
        return self.task_id, self.turn_id, self.epoch


def task_entry(offer: OfferEntry) -> list[bytes | str | int]:
    """An offer as the fields of an entry, in the order of the protocol."""
    values: tuple[bytes | str | int, ...] = (
        offer.task_id,
        offer.turn_id,
        offer.agent,
        offer.payload,
        offer.parent_id or offer.task_id,
        offer.turn_number,
        offer.retry_count,
        offer.idempotency_key or offer.task_id,
        offer.turn_id,
        offer.epoch,
    )
    return [part for field in zip(TASK_FIELDS, values, strict=True) for part in field]


def read_task(message_id: str, raw: RawFields) -> Delivery | Malformed:
    """Read an entry of the task stream."""
    fields = _read_fields(TASK, message_id, raw, REQUIRED_TASK_FIELDS)
    if isinstance(fields, Malformed):
        return fields
    problem = _find_problem(fields)
    if problem is not None:
        return _make_malformed(TASK, message_id, raw, "bad_field", problem)
    if not _is_json(fields["payload"].encode()):
        return _make_malformed(TASK, message_id, raw, "bad_payload", "payload is not JSON")
    return Delivery(
        message_id=message_id,
        task_id=fields["task_id"],
        turn_id=fields["turn"],
        epoch=int(fields["epoch"]),
        agent=fields["tool_name"],
        payload=fields["payload"].encode(),
    )


def _is_json(payload: bytes) -> bool:
    """Whether the text is one JSON value: its structure is checked, no value is built."""
    try:
        _json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def read_report(entry_id: str, raw: RawFields) -> ReportEntry | Malformed:
    """Read an entry of the result stream.

    Its free texts never make it malformed: a turn whose output cannot be kept must end, not be done again.
    """
    raw, free_texts = _separate_free_texts(raw)
    fields = _read_fields(RESULT, entry_id, raw, ("status",))
    if isinstance(fields, Malformed):
        return fields
    status = fields["status"]
    if fields.get("event_id"):
        task_id, event_id = fields.get("task_id", ""), fields["event_id"]
        return ReportEntry(entry_id=entry_id, status=status, task_id=task_id, event_id=event_id)
    required = ("worker_id",) if status == LEAVING else REQUIRED_REPORT_FIELDS
    fields = _read_fields(RESULT, entry_id, raw, required)
    if isinstance(fields, Malformed):
        return fields
    fields = {"epoch": "0", "message_id": "0-0", **fields}
    problem = _find_problem(fields)
    if problem is not None:
        return _make_malformed(RESULT, entry_id, raw, "bad_field", problem)
    return ReportEntry(
        entry_id=entry_id,
        task_id=fields.get("task_id", ""),
        status=status,
        turn_id=fields.get("turn", ""),
        epoch=int(fields["epoch"]),
        worker_id=fields["worker_id"],
        message_id=fields["message_id"],
        attempt=fields.get("attempt", ""),
        output=free_texts.get(b"output", b""),
        error=_as_text(free_texts.get(b"error", b"")),
        tool_name=fields.get("tool_name", ""),
        note=_as_text(free_texts.get(b"note", b"")),
    )


def _separate_free_texts(raw: RawFields) -> tuple[RawFields, dict[bytes, bytes]]:
    if raw is None:
        return None, {}
    pairs = list(zip(raw[::2], raw[1::2], strict=False))
    named = [part for name, value in pairs if name not in _FREE_TEXTS for part in (name, value)]
    return named, {name: value for name, value in pairs if name in _FREE_TEXTS}


def _as_text(raw: bytes) -> str:
    return raw[:MAX_BYTES].decode(errors="replace")


def result_entry(values: Mapping[str, bytes | str | int]) -> list[bytes | str | int]:
    """A published result as the fields of an entry, without the empty ones."""
    found = ((name, values.get(name, "")) for name in REPORT_FIELDS)
    return [part for name, value in found if value != "" and value != b"" for part in (name, value)]


def passed_entry(delivery: Delivery, worker_id: str) -> list[str | int]:
    """The report that a worker does not serve the agent of a delivery."""
    values: dict[str, str | int] = {
        "task_id": delivery.task_id,
        "status": "passed",
        "turn": delivery.turn_id,
        "epoch": delivery.epoch,
        "worker_id": worker_id,
        "message_id": delivery.message_id,
        "tool_name": delivery.agent,
    }
    return [part for field in values.items() for part in field]


def dead_letter_entry(values: Mapping[str, object]) -> list[str]:
    """A dead letter as the fields of an entry; unknown ones are empty."""
    return [part for name in DLQ_FIELDS for part in (name, str(values.get(name, "")))]


def malformed_letter(bad: Malformed, failed_at: str) -> list[str]:
    """The dead letter of a malformed entry: what could be read of it, and the reason."""
    shown = {name: bad.shown.get(name, "") for name in ("task_id", "tool_name", "payload")}
    error = ErrorInfo(code=bad.reason, message=bad.problem)
    return dead_letter_entry(
        {
            **shown,
            "retry_count": bad.shown.get("retry_count", "0"),
            "error": bad.problem,
            "failed_at": failed_at,
            "reason": bad.reason,
            "fingerprint": fingerprint(shown["tool_name"], bad.reason, error),
            "message_id": bad.message_id,
            "stream": bad.stream,
        }
    )


def _read_fields(
    stream: str, message_id: str, raw: RawFields, required: Sequence[str]
) -> dict[str, str] | Malformed:
    if raw is None:
        problem = "the entry was deleted before it was read"
        return _make_malformed(stream, message_id, raw, "deleted_entry", problem)
    size = sum(map(len, raw))
    if size > MAX_ENTRY_BYTES:
        problem = f"the entry has {size:,} bytes; {MAX_ENTRY_BYTES:,} are allowed"
        return _make_malformed(stream, message_id, raw, "oversized_entry", problem)
    try:
        texts = [part.decode() for part in raw]
    except UnicodeDecodeError:
        return _make_malformed(stream, message_id, raw, "not_utf8", "a field is not UTF-8")
    fields = dict(zip(texts[::2], texts[1::2], strict=False))
    missing = [name for name in required if not fields.get(name)]
    if missing:
        return _make_malformed(stream, message_id, raw, "missing_fields", f"missing: {', '.join(missing)}")
    return fields


def _find_problem(fields: Mapping[str, str]) -> str | None:
    """What a field holds that no orchestrator writes, and no store or server can take."""
    for name in _NAME_FIELDS:
        if not is_plain_name(fields.get(name, "-") or "-"):
            return f"{name} must be at most {LONGEST_NAME} characters that can be printed"
    if not is_whole_number(fields["epoch"]):
        return "epoch must be a whole number"
    if not is_entry_id(fields.get("message_id", "0-0")):
        return "message_id must be the id of an entry"
    if fields.get("status", REPORT_STATUSES[0]) not in REPORT_STATUSES:
        return f"status must be one of {', '.join(REPORT_STATUSES)}"
    return None


def is_entry_id(text: str) -> bool:
    """Whether it is the id of an entry; no task has an id of this form."""
    return _ENTRY_ID.fullmatch(text) is not None


def is_plain_name(name: str) -> bool:
    """Whether every store and every server can take it as a name."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


def is_whole_number(text: str) -> bool:
    """Whether it is a whole number that every store can take."""
    return _WHOLE_NUMBER.fullmatch(text) is not None


def _make_malformed(stream: str, message_id: str, raw: RawFields, reason: str, problem: str) -> Malformed:
    """Fields that can be read are kept whole: an entry that lacks a field can be replayed with it."""
    if reason in CUT_REASONS:
        cut = (part[:_SHOWN_CHARACTERS].decode(errors="replace") for part in raw or ())
        texts = [clean_text(part, _SHOWN_CHARACTERS) for part in cut]
    else:
        texts = [part.decode() for part in raw or ()]
    shown = dict(zip(texts[::2], texts[1::2], strict=False))
    return Malformed(stream=stream, message_id=message_id, reason=reason, problem=problem, shown=shown)
