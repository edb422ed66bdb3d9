"""Making a failure small: fewer faults, the same violation; and keeping it, to be run for ever."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from endwell.testing.faults import all as all_faults
from endwell.testing.faults.registry import Planned
from endwell.testing.installation import Installation, installation_for
from endwell.testing.simulation import FAULT_COUNT, Simulation, SimulationResult

MOST_RUNS: Final = 60
LISTS: Final = all_faults.LISTS
VERSION: Final = 2
"""Of how a case is written down."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One history that once went wrong, with everything that was chosen for it."""

    version: Literal[2]
    seed: int
    why: str
    faults: tuple[Planned, ...]
    installation: Installation

    def run(self) -> SimulationResult:
        """As it once went."""
        return simulate(self.seed, self.faults, installation=self.installation)


def simulate(
    seed: int,
    faults: int | Sequence[Planned] = FAULT_COUNT,
    *,
    installation: Installation | None = None,
    **chosen: Any,
) -> SimulationResult:
    """Run one seed in a directory of its own, in memory where that can be had."""
    lived_in = installation or installation_for(seed, **chosen)
    with tempfile.TemporaryDirectory(prefix="endwell-sim-", dir=_memory()) as directory:
        return Simulation(seed, Path(directory), lived_in, faults).run()


def _memory() -> str | None:
    shared = Path("/dev/shm")  # noqa: S108 (a fresh directory in it, readable by its owner alone)
    return str(shared) if shared.is_dir() else None


Run = Callable[..., SimulationResult]


def shrink(failed: SimulationResult, run: Run = simulate) -> SimulationResult:
    """The same violation with as few faults as could be found: halves first, then ever smaller parts."""
    best, runs = failed, 0
    size = max(len(failed.plan) // 2, 1)
    while runs < MOST_RUNS:
        smaller, tried = _without_part(best, size, MOST_RUNS - runs, run)
        runs += tried
        if smaller is not None:
            best = smaller
            size = min(size, max(len(best.plan) // 2, 1))
        elif size == 1:
            break
        else:
            size = max(size // 2, 1)
    return best


def _without_part(
    best: SimulationResult, size: int, budget: int, run: Run
) -> tuple[SimulationResult | None, int]:
    wanted = best.violations[0].invariant
    tried = 0
    for start in range(0, len(best.plan), size):
        if tried >= budget:
            break
        tried += 1
        fewer = [*best.plan[:start], *best.plan[start + size :]]
        result = run(best.seed, fewer, installation=best.installation)
        if result.violations and result.violations[0].invariant == wanted:
            return result, tried
    return None, tried


def told(result: SimulationResult) -> str:
    """A failure as text: what does not hold, under which faults, and who did what when."""
    faults = "\n".join(f"  {one.at_seconds:7.1f} s  {one.name}" for one in result.plan)
    found = "\n".join(str(one) for one in result.violations[:3])
    has = result.installation.parts
    parts = f"queue {has.queue}, {'with' if has.relay else 'without'} relay"
    title = f"seed {result.seed} ({parts}) broke"
    return f"{title}\n{found}\nwith {len(result.plan)} faults:\n{faults}\n{result.trace}"


def keep(result: SimulationResult, corpus: Path) -> Path:
    """Write a failure down among those that are run for ever."""
    why = result.violations[0].invariant
    case = Case(
        version=VERSION, seed=result.seed, why=why, faults=result.plan, installation=result.installation
    )
    corpus.mkdir(parents=True, exist_ok=True)
    path = corpus / f"{why}-{result.seed}.json"
    path.write_text(written(case))
    return path


def written(case: Case) -> str:
    """As JSON, with a line for each fault, setting and order."""
    return _block(msgspec.to_builtins(case), depth=2) + "\n"


def _block(value: Any, depth: int) -> str:
    """What is deeper than that stays on its line."""
    if depth < 0 or not value or not isinstance(value, dict | list | tuple):
        return msgspec.json.encode(value).decode()
    if isinstance(value, dict):
        items = [
            f"{msgspec.json.encode(key).decode()}: {_block(one, depth - 1)}" for key, one in value.items()
        ]
        return "{\n" + ",\n".join(items) + "\n}"
    return "[\n" + ",\n".join(_block(one, -1) for one in value) + "\n]"


def cases(corpus: Path) -> dict[str, Case]:
    """Every history that is kept."""
    return {
        path.stem: msgspec.json.decode(path.read_bytes(), type=Case) for path in sorted(corpus.glob("*.json"))
    }
