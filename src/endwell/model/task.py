"""The task: everything the machine knows about one unit of work.

A task is the fold of its events. Times are integer microseconds since 1970 (UTC).
Fields are positional and in the order of the table's columns, so that a row becomes a task by `Task(*row)`:
the hottest line of the system.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from endwell.model.content import clean_text
from endwell.model.status import TERMINAL, Status
from endwell.model.wait import Wait, WaitRows

Redelivery = Literal["reclaim", "resume", "hand_back"]


class Task(msgspec.Struct, frozen=True, gc=False):
    """One task. `gc=False`: it holds no cycles, and there are many of them."""

    # what was asked, of whom; never changes
    namespace: str
    id: str
    agent: str
    agent_key: str | None = None
    idempotency_key: str = ""
    channel: str = "main"
    fair_key: str | None = None
    agent_version: str | None = None
    trace: str | None = None
    parent_id: str | None = None
    replay_of: str | None = None
    payload_card: str = ""
    payload_hash: str = ""
    priority: int = 0
    retry_policy: str | None = None
    family: str | None = None
    created_at: int = 0
    # where it stands
    status: Status = "queued"
    reason: str | None = None
    owner: str | None = None
    error: str | None = None
    deliverable_card: str | None = None
    dead_letter: str | None = None
    superseded_by: str | None = None
    # the current turn, and who holds it
    turn_id: str | None = None
    turn_number: int = 0
    redelivery: Redelivery | None = None
    attempt_id: str | None = None
    session_id: str | None = None
    slot: int | None = None
    waits: str | None = None
    inside: str | None = None
    # counters, each raised inside the commit that it counts
    retry_count: int = 0
    dispatch_count: int = 0
    crash_count: int = 0
    crash_times: str | None = None
    recovery_attempt: int = 0
    # deadlines; the clock is their minimum
    run_at: int = 0
    ring_at: int | None = None
    dispatch_by: int | None = None
    progress_by: int | None = None
    wait_by: int | None = None
    suspend_by: int | None = None
    remind_at: int | None = None
    expire_at: int | None = None
    recover_at: int | None = None
    guard_at: int | None = None
    guard_reason: str | None = None
    held_since: int | None = None
    ends_by: int = 0
    clock_at: int | None = None
    clock_rule: str | None = None
    # the log's end for this task
    epoch: int = 0
    version: int = 0
    head_hash: bytes = b""
    started_at: int | None = None
    ended_at: int | None = None
    updated_at: int = 0

    @property
    def is_ended(self) -> bool:
        """Whether the task has reached its one terminal status."""
        return self.status in TERMINAL


_waits_decoder = msgspec.json.Decoder(tuple[Wait, ...])
_rows_decoder = msgspec.json.Decoder(WaitRows)


def waits_of(task: Task) -> tuple[Wait, ...]:
    """Unpack the waits of the current turn, as far as they are in the task's own row."""
    return () if task.waits is None or has_wait_rows(task) else _waits_decoder.decode(task.waits)


def has_wait_rows(task: Task) -> bool:
    """Whether the waits are too many for the task's row, and only rows of `turn_waiting_tools`."""
    return task.waits is not None and task.waits.startswith("{")


def open_waits(task: Task) -> int:
    """Count the open waits of the current turn."""
    if task.waits is not None and has_wait_rows(task):
        return _rows_decoder.decode(task.waits).open
    return sum(wait.is_open for wait in waits_of(task))


def packed_waits(waits: tuple[Wait, ...]) -> str | None:
    """Pack waits as one column's text."""
    return msgspec.json.encode(waits).decode() if waits else None


def counted_waits(count: int) -> str:
    """The column's text where the waits have rows of their own."""
    return msgspec.json.encode(WaitRows(count)).decode()


FIELDS: Final[tuple[str, ...]] = Task.__struct_fields__
FIXED_FIELDS: Final[tuple[str, ...]] = FIELDS[: FIELDS.index("status")]
MOVING_FIELDS: Final[tuple[str, ...]] = FIELDS[FIELDS.index("status") :]


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a turn did not succeed, as kept on the task and shown to people."""

    code: str
    type: str = ""
    message: str = ""
    retryable: bool = True
    traceback: str | None = None


ERROR_CODE_LIMIT: Final = 100
"""At most this many characters of an error's code, and of its type."""


def clean_error(info: ErrorInfo, *, message_limit: int, traceback_limit: int = 0) -> ErrorInfo:
    """Clean and cut an error that another process reported, so that any store and terminal can show it."""
    is_code = info.code.isascii() and info.code.isprintable() and 0 < len(info.code) <= ERROR_CODE_LIMIT
    return ErrorInfo(
        code=info.code if is_code else "exception",
        type=clean_text(info.type, ERROR_CODE_LIMIT),
        message=clean_text(info.message, message_limit),
        retryable=info.retryable,
        traceback=info.traceback and clean_text(info.traceback, traceback_limit),
    )


def error_of(task: Task) -> ErrorInfo | None:
    """Unpack the last error of the task."""
    return _error_decoder.decode(task.error) if task.error else None


_error_decoder: Final = msgspec.json.Decoder(ErrorInfo)
