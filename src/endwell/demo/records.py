"""The demo's files and values: the journal of what it did, the sink for effects, the table it ends with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

LEAST_VICTIMS = 5
LEAST_RECLAIMS = 5
LEAST_REFUSED = 1


class Submitted(msgspec.Struct, frozen=True, tag="submitted"):
    """Journal: these submissions were acknowledged."""

    ids: list[str]


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """Journal: a process was killed at `at` by the store's clock; a worker had this session."""

    pid: int
    role: str
    name: str
    session_id: str | None
    at: int


class Frozen(msgspec.Struct, frozen=True, tag="frozen"):
    """Journal: a worker was stopped, and woken after its tasks had been reclaimed."""

    pid: int
    name: str
    session_id: str
    at: int
    woken_at: int


Entry = Submitted | Killed | Frozen


def append_line(path: Path, line: Any) -> None:
    """Append one JSON line, in one write, to a file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(descriptor)


def read_lines(path: Path, type_: Any = dict[str, Any]) -> list[Any]:
    """All JSON lines of a file that may not exist yet."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return [msgspec.json.decode(line, type=type_) for line in lines]


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One SIGKILL. `held_lease`: by the log, tasks were reclaimed from the victim's session afterwards."""

    pid: int
    signal: str
    at: str
    held_lease: bool
    role: str
    name: str
    tasks_held: int


class Freeze(msgspec.Struct, frozen=True, kw_only=True):
    """One SIGSTOP past the lease, and how many writes of the woken worker were refused."""

    pid: int
    at: str
    woken_at: str
    name: str
    tasks_held: int
    refused: int


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader found in store and sink when all was at rest."""

    submitted: int
    ended: dict[str, int]
    kills: list[Kill]
    freezes: list[Freeze]
    reclaims: int
    refused_stale: int
    retries: int
    sink_calls: int
    effects: int
    effects_duplicated: int
    effects_settled: int
    lost: int
    stuck: int
    doubly_finished: int
    log_problems: int

    @property
    def victim_count(self) -> int:
        """Workers that were killed while they held tasks; a PMO or an idle worker does not count."""
        return sum(kill.held_lease for kill in self.kills)


def find_shortcomings(table: Table) -> list[str]:
    """What the run failed to show; empty if it showed everything."""
    forbidden = {
        "task lost": table.lost,
        "task stuck": table.stuck,
        "task finished twice": table.doubly_finished,
        "effect that happened twice": table.effects_duplicated,
        "task with a broken log": table.log_problems,
    }
    required = {
        "victim that held work when killed": (table.victim_count, LEAST_VICTIMS),
        "reclaim": (table.reclaims, LEAST_RECLAIMS),
        "refused stale write": (table.refused_stale, LEAST_REFUSED),
        "submitted task": (table.submitted, 1),
        "effect": (table.effects, 1),
    }
    wrong = [f"{count} × {what}" for what, count in forbidden.items() if count]
    wrong += [f"{n} × {what}, at least {least} wanted" for what, (n, least) in required.items() if n < least]
    return wrong
