"""Kept histories: simulated histories that once failed, as JSON files that are run for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from endwell.testing.faults.registry import Planned
from endwell.testing.installation import Installation
from endwell.testing.shrinking import simulate
from endwell.testing.simulation import SimulationResult

HISTORIES: Final = Path(__file__).parents[1] / "testing" / "corpus"
VERSION: Final = 2
"""Version of the file format."""


class KeptHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One history that once failed, with everything that was chosen for it. `why` is the invariant."""

    version: Literal[2]
    seed: int
    why: str
    faults: tuple[Planned, ...]
    installation: Installation

    def run(self) -> SimulationResult:
        """Run it with its own faults and installation."""
        return simulate(self.seed, self.faults, installation=self.installation)


def keep_history(failed: SimulationResult, directory: Path = HISTORIES) -> Path:
    """Write a failed history down, so that it is run for ever."""
    why = failed.violations[0].invariant
    history = KeptHistory(
        version=VERSION, seed=failed.seed, why=why, faults=failed.plan, installation=failed.installation
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{why}-{failed.seed}.json"
    path.write_text(to_json(history))
    return path


def kept_histories(directory: Path = HISTORIES) -> dict[str, KeptHistory]:
    """Read every kept history."""
    return {
        path.stem: msgspec.json.decode(path.read_bytes(), type=KeptHistory)
        for path in sorted(directory.glob("*.json"))
    }


def to_json(history: KeptHistory) -> str:
    """Write a history with one line for each fault, setting and order."""
    return _block(msgspec.to_builtins(history), depth=2) + "\n"


def _block(value: Any, depth: int) -> str:
    """Break `depth` levels into lines; keep the rest on one line."""
    if depth < 0 or not value or not isinstance(value, dict | list | tuple):
        return msgspec.json.encode(value).decode()
    if isinstance(value, dict):
        items = [
            f"{msgspec.json.encode(key).decode()}: {_block(one, depth - 1)}" for key, one in value.items()
        ]
        return "{\n" + ",\n".join(items) + "\n}"
    return "[\n" + ",\n".join(_block(one, -1) for one in value) + "\n]"
