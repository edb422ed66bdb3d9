"""Run the history of a seed, and shrink a failed one: fewer faults, the same violation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from endwell.testing.faults import all as all_faults
from endwell.testing.faults.registry import Planned
from endwell.testing.installation import Installation, installation_for
from endwell.testing.simulation import FAULT_COUNT, Simulation, SimulationResult

MOST_RUNS: Final = 60
LISTS: Final = all_faults.LISTS
"""Importing them registers the faults."""

Run = Callable[..., SimulationResult]


def simulate(
    seed: int,
    faults: int | Sequence[Planned] = FAULT_COUNT,
    *,
    installation: Installation | None = None,
    **chosen: Any,
) -> SimulationResult:
    """Run the history of a seed in a fresh directory, in memory where the system offers that."""
    home = installation or installation_for(seed, **chosen)
    with tempfile.TemporaryDirectory(prefix="endwell-sim-", dir=memory_directory()) as directory:
        return Simulation(seed, Path(directory), home, faults).run()


def memory_directory() -> str | None:
    """Return a directory that is kept in memory, if there is one."""
    shared = Path("/dev/shm")  # noqa: S108 (a fresh directory in it, readable by its owner alone)
    return str(shared) if shared.is_dir() else None


def shrink(failed: SimulationResult, run: Run = simulate) -> SimulationResult:
    """Find the same violation with fewer faults: leave out halves first, then ever smaller parts."""
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
    """Return the first smaller failure, and how many histories were run to find it."""
    wanted = best.violations[0].invariant
    starts = range(0, len(best.plan), size)[:budget]
    for tried, start in enumerate(starts, 1):
        fewer = [*best.plan[:start], *best.plan[start + size :]]
        result = run(best.seed, fewer, installation=best.installation)
        if result.violations and result.violations[0].invariant == wanted:
            return result, tried
    return None, len(starts)


def describe_failure(result: SimulationResult) -> str:
    """Describe a failure: what does not hold, under which faults, and what each process did."""
    faults = "\n".join(f"  {one.at_seconds:7.1f} s  {one.name}" for one in result.plan)
    found = "\n".join(str(one) for one in result.violations[:3])
    has = result.installation.parts
    parts = f"queue {has.queue}, {'with' if has.relay else 'without'} relay"
    title = f"seed {result.seed} ({parts}) broke"
    return f"{title}\n{found}\nwith {len(result.plan)} faults:\n{faults}\n{result.trace}"
