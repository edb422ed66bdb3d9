"""The bench's table, and what it says of the machine it ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from endwell.bench.rows import BARE, Row, against_bare, against_floor, floor_of
from endwell.cli.base.output import table
from endwell.runtime.loops import name_of_loop

COLUMNS = ("measure", "value", "unit", "n", "floor", "× floor", "of bare loop")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "event_loop": name_of_loop(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def as_text(document: dict[str, Any]) -> str:
    """Machine, settings read back from the store, and one line per figure."""
    rows = [Row(**row) for row in document["rows"]]
    about = [f"{name}: {_brief(document[name])}" for name in ("machine", "settings")]
    lines = [_line(row, rows) for row in rows]
    return "\n".join([*about, "", table(COLUMNS, lines, empty="no figure holds"), "", *NOTES])


NOTES = (
    "Drain: from the first claim to the last end by the store's own timestamps; process start is not in it.",
    "Latency: from the call of submit to the result in hand, in another process than the worker's.",
    "Resume: from the call of answer to the result of the turn that waited for it. Replay: inside the turn.",
    "× floor: how many times as good as the floor of a first version (2 cores); shown, not asserted.",
    "Bare loop: the same durability without log, fence, clocks or other processes, in this run.",
)


def _brief(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _line(row: Row, rows: list[Row]) -> list[str]:
    floor, times, share = floor_of(row), against_floor(row), against_bare(row, rows)
    is_bare = row.name.startswith(BARE)
    return [
        row.name,
        _number(row.value),
        row.unit,
        str(row.n),
        "" if floor is None or is_bare else _number(floor),
        "" if times is None or is_bare else f"{times:.2f}",
        "" if share is None else f"{100 * share:.0f} %",
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
