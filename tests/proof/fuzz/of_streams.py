"""Fuzzing decoders of Redis Streams entries: any client of the server can write there."""

from __future__ import annotations

from typing import Final

from endwell.model import content
from endwell.streams.entries import (
    Delivery,
    Malformed,
    is_plain_name,
    malformed_letter,
    read_report,
    read_task,
)
from endwell.streams.foreign_keys import read_registration
from endwell.streams.orchestrator.foreign import read_ending
from tests.proof.fuzz.campaign import Target
from tests.proof.fuzz.mutate import one_of

_BETWEEN: Final = b"\x1e"
_TASKS: Final = (
    b"task_id run_id tool_name payload workflow_id step_index retry_count idempotency_key turn epoch",
    b"task_id tool_name payload turn epoch",
)
_VALUES: Final = {
    b"payload": '{"width": 640, "name": "größer"}'.encode(),
    b"epoch": b"3",
    b"message_id": b"1795032222889-0",
    b"status": b"succeeded",
    b"output": b'[1, "\\u20ac", {"a": null}]',
    b"error": b'{"message": "no paper", "code": "paper", "retryable": false, "at": 7}',
    b"note": b"half of the pages",
}
_WORKERS: Final = (b'{"tools": ["press", "scan"], "slots": 2}', b'{"tools": [], "since": 7}')
_REPORTS: Final = (
    b"task_id status turn epoch worker_id message_id attempt output",
    b"task_id status turn epoch worker_id message_id attempt error note",
    b"status worker_id task_id turn epoch message_id output error",
)


def _entry(names: bytes) -> bytes:
    fields = ((name, _VALUES.get(name, b"some-" + name)) for name in names.split())
    return _BETWEEN.join(part for field in fields for part in field)


def _take_task(data: bytes) -> bool:
    found = read_task("1-1", data.split(_BETWEEN))
    if isinstance(found, Malformed):
        return _buried(found)
    assert isinstance(found, Delivery)
    assert is_plain_name(found.task_id)
    return True


def _take_report(data: bytes) -> bool:
    found = read_report("1-1", data.split(_BETWEEN))
    if isinstance(found, Malformed):
        return _buried(found)
    output, error = read_ending(found)
    if error is None:
        content.decode_stored(output)
    else:
        content.encode(error.message)
    return True


def _take_worker(data: bytes) -> bool:
    found = read_registration("hand-1", data)
    assert found is None or 1 <= found.slots <= 1000
    return found is not None


def _buried(bad: Malformed) -> bool:
    letter = malformed_letter(bad, "now")
    assert all(isinstance(part, str) for part in letter)
    return False


def targets() -> tuple[Target, ...]:
    return (
        Target(name="task-entry", share=30, valid=one_of(tuple(map(_entry, _TASKS))), take=_take_task),
        Target(name="report", share=30, valid=one_of(tuple(map(_entry, _REPORTS))), take=_take_report),
        Target(name="foreign-worker", share=10, valid=one_of(_WORKERS), take=_take_worker),
    )
