"""The hash chain by itself: no event can be changed, exchanged, cut off or put in without it being found."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.task import Task
from endwell.store.log import Event, check_chain, hash_of, seal

TASK = Task(namespace="n", id="t", agent="a")
COMMAND = c.Progress(command_id="c", namespace="n", actor="w", task_id="t", attempt_id="x")


def _log(length: int = 4) -> list[Event]:
    events: list[Event] = []
    head = b""
    for version in range(1, length + 1):
        fact = f.TaskHeartbeat(progress_by=version, note=f"step {version}")
        events.append(Event(*seal(TASK, version, fact, COMMAND, 1_000 + version, "x", head)))
        head = events[-1].hash
    return events


def _problems(events: list[Event], whole: list[Event]) -> list[tuple[int, str]]:
    head = (whole[-1].version, whole[-1].hash)
    return [(problem.version, problem.kind) for problem in check_chain("t", events, head)]


def test_a_log_as_it_was_written_has_no_problems() -> None:
    assert _problems(_log(), _log()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"data": b'{"progress_by":2}'},
        {"type": "task.failed"},
        {"at": 5},
        {"actor": "somebody"},
        {"command_id": "another"},
        {"attempt_id": None},
        {"epoch": 7},
        {"schema": 2},
        {"causation_id": "x"},
        {"namespace": "elsewhere"},
        {"task_id": "another"},
        {"hash": b"\0" * 32},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_is_changed_about_an_event_is_found(change: dict[str, Any]) -> None:
    events = _log()
    events[1] = replace(events[1], **change)

    assert (2, "changed") in _problems(events, _log())


def test_an_event_that_was_sealed_anew_is_found_by_its_successor() -> None:
    """To hide a changed event, every later hash must be changed, and the task's row as well."""
    events = _log()
    forged = replace(events[1], data=b'{"progress_by":99}')
    events[1] = replace(forged, hash=hash_of(forged, events[0].hash))

    assert _problems(events, _log()) == [(3, "changed")]


def test_a_whole_log_that_was_sealed_anew_is_found_by_the_tasks_row() -> None:
    events = _log()
    head = events[0].hash
    for place in (1, 2, 3):
        forged = replace(events[place], at=5)
        events[place] = replace(forged, hash=hash_of(forged, head))
        head = events[place].hash

    assert _problems(events, _log()) == [(4, "changed")]


def test_the_same_event_at_another_place_has_another_hash() -> None:
    first, second = _log(2)

    assert hash_of(second, b"") != second.hash
    assert hash_of(second, first.hash) == second.hash


def test_a_tail_that_was_cut_off_is_found() -> None:
    assert _problems(_log()[:-1], _log()) == [(4, "cut_off")]
    assert _problems([], _log()) == [(1, "cut_off")]


def test_an_event_that_is_missing_or_doubled_is_found() -> None:
    events = _log()

    assert (2, "missing") in _problems([events[0], *events[2:]], events)
    assert (2, "duplicated") in _problems([events[0], events[0], *events[1:]], events)


def test_an_event_that_was_added_is_found() -> None:
    assert _problems(_log(5), _log(4)) == [(5, "not_in_task")]
