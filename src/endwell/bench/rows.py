"""The rows of the bench: sizes, floors, comparisons, the table, and the machine it ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import msgspec

from endwell.cli.base.output import table_text
from endwell.runtime.loops import name_of_loop

BARE = "bare_"
"""Before the name of a row, it is the bare loop's figure."""
MORE_IS_BETTER = ("tasks/s", "steps/s", "%")
COLUMNS = ("measure", "value", "unit", "n", "floor", "× floor", "of bare loop")
NOTES = (
    "Drain: from the first claim to the last end by the store's own timestamps; process start is not in it.",
    "Latency: from the call of submit to the result in hand, in another process than the worker's.",
    "Resume: from the call of answer to the result of the turn that waited for it. Replay: inside the turn.",
    "× floor: how many times as good as the floor of a first version (2 cores); shown, not asserted.",
    "Bare loop: the same durability without log, fence, clocks or other processes, in this run.",
)


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    one_by_one: int = 3_000
    bulk: int = 50_000
    latency: int = 500
    claims: int = 200
    idle_seconds: float = 20.0
    backlogs: tuple[int, ...] = (10_000, 100_000)
    steps_alone: int = 3_000
    step_tasks: int = 3_000
    steps_each: int = 10
    resumes: int = 200
    replayed_steps: int = 1_000


QUICK = Sizes(
    one_by_one=200,
    bulk=2_000,
    latency=200,
    claims=20,
    idle_seconds=6.0,
    backlogs=(500, 2_000),
    steps_alone=200,
    step_tasks=200,
    resumes=20,
    replayed_steps=100,
)
USUAL = Sizes()
FULL = Sizes(backlogs=(10_000, 100_000, 1_000_000))


class Row(msgspec.Struct, frozen=True):
    """One figure; `n` is how many tasks, or seconds, it rests on."""

    name: str
    store: str
    value: float
    unit: str
    n: int


_STREAMED: dict[str, float] = {
    "submit_one_by_one": 1_500,
    "submit_bulk": 15_000,
    "drain_1_worker": 8_000,
    "idle_latency_p50": 5,
    "idle_latency_p99": 12,
    "resume_p50": 15,
}
FLOORS: dict[str, dict[str, float]] = {
    "sqlite": {
        "submit_one_by_one": 2_500,
        "submit_bulk": 30_000,
        "drain_1_worker": 12_000,
        "idle_latency_p50": 2.5,
        "idle_latency_p99": 8,
        "steps_one_task": 1_500,
        "steps_many_tasks": 15_000,
        "resume_p50": 10,
        "replay_1000_steps": 50,
    },
    "postgresql": {
        "submit_one_by_one": 1_500,
        "submit_bulk": 20_000,
        "drain_1_worker": 8_000,
        "idle_latency_p50": 5,
        "idle_latency_p99": 12,
        "steps_one_task": 1_200,
        "steps_many_tasks": 8_000,
        "resume_p50": 15,
        "replay_1000_steps": 80,
    },
    "redis+sqlite": _STREAMED,
    "redis+postgresql": _STREAMED,
}
"""What a first version should reach on a machine with two cores. Shown, never asserted."""
_EVERYWHERE: dict[str, float] = {"idle_cpu_worker": 1, "idle_cpu_pmo": 1, "drain_1000000_vs_10000": 90}


def floor_of(row: Row) -> float | None:
    """The floor for a row, if it has one."""
    return FLOORS[row.store].get(row.name, _EVERYWHERE.get(row.name))


def against_floor(row: Row) -> float | None:
    """How many times as good as the floor: 2 is twice the rate, or half the wait."""
    floor = floor_of(row)
    if floor is None or not row.value:
        return None
    return row.value / floor if row.unit in MORE_IS_BETTER else floor / row.value


def against_bare(row: Row, rows: list[Row]) -> float | None:
    """The share of the bare loop's rate on the same machine."""
    limit = next((other for other in rows if other.name == BARE + row.name), None)
    return row.value / limit.value if limit is not None and limit.value else None


def compare_backlogs(rows: list[Row], backlogs: tuple[int, ...]) -> list[Row]:
    """The drain rate at the largest backlog against that at the smallest, if both were measured."""
    least, most = min(backlogs), max(backlogs)
    drains = {row.name: row for row in rows}
    small, large = drains.get(f"drain_at_{least}"), drains.get(f"drain_at_{most}")
    if small is None or large is None:
        return []
    return [Row(f"drain_{most}_vs_{least}", large.store, 100 * large.value / small.value, "%", most)]


def percentile_rows(name: str, store: str, seconds: list[float], suffix: str = "") -> list[Row]:
    """The middle and the slow end of some times, in milliseconds."""
    ordered = sorted(seconds)
    return [
        Row(f"{name}_p{p}{suffix}", store, ordered[len(ordered) * p // 100] * 1000, "ms", len(ordered))
        for p in (50, 99)
    ]


def describe_machine() -> dict[str, Any]:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "system": platform.platform(),
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "event_loop": name_of_loop(),
    }


def as_text(document: dict[str, Any]) -> str:
    """Machine, settings read back from the store, and one line per figure."""
    rows = [Row(**row) for row in document["rows"]]
    head = [
        f"{name}: {', '.join(f'{key} {value}' for key, value in document[name].items())}"
        for name in ("machine", "settings")
    ]
    lines = [_table_line(row, rows) for row in rows]
    return "\n".join([*head, "", table_text(COLUMNS, lines, empty="no figure holds"), "", *NOTES])


def _table_line(row: Row, rows: list[Row]) -> list[str]:
    is_bare = row.name.startswith(BARE)
    floor, times = (None, None) if is_bare else (floor_of(row), against_floor(row))
    share = against_bare(row, rows)
    return [
        row.name,
        _number_text(row.value),
        row.unit,
        str(row.n),
        "" if floor is None else _number_text(floor),
        "" if times is None else f"{times:.2f}",
        "" if share is None else f"{100 * share:.0f} %",
    ]


def _number_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
