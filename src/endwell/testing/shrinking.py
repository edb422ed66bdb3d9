"""Making a failure small: fewer faults, the same violation; and keeping it, to be run for ever."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from endwell.testing.faults import all as all_faults
from endwell.testing.faults.registry import Planned
from endwell.testing.parts import QueueKind
from endwell.testing.simulation import Result, Simulation

MOST_RUNS: Final = 60
LISTS: Final = all_faults.LISTS


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One history that once went wrong."""

    seed: int
    why: str
    faults: tuple[tuple[float, str, int], ...]
    orders: int | None = None
    queue: QueueKind = "native"
    relay: bool = False

    @property
    def plan(self) -> list[Planned]:
        """Its faults."""
        return [Planned(at, name, salt) for at, name, salt in self.faults]

    def run(self) -> Result:
        """As it once went."""
        return simulate(self.seed, self.plan, queue=self.queue, relay=self.relay)


def simulate(seed: int, faults: Sequence[Planned] | None = None, **options: Any) -> Result:
    """Run one seed in a directory of its own, in memory where that can be had."""
    if faults is not None:
        options["faults"] = faults
    with tempfile.TemporaryDirectory(prefix="endwell-sim-", dir=_memory()) as directory:
        return Simulation(seed, Path(directory), **options).run()


def _memory() -> str | None:
    shared = Path("/dev/shm")  # noqa: S108 (a fresh directory in it, readable by its owner alone)
    return str(shared) if shared.is_dir() else None


Run = Callable[..., Result]


def shrink(failed: Result, run: Run = simulate) -> Result:
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


def _without_part(best: Result, size: int, budget: int, run: Run) -> tuple[Result | None, int]:
    wanted = best.violations[0].invariant
    tried = 0
    for start in range(0, len(best.plan), size):
        if tried >= budget:
            break
        tried += 1
        parts: dict[str, Any] = {"queue": best.queue, "relay": best.relay}
        result = run(best.seed, [*best.plan[:start], *best.plan[start + size :]], **parts)
        if result.violations and result.violations[0].invariant == wanted:
            return result, tried
    return None, tried


def told(result: Result) -> str:
    """A failure as text: what does not hold, under which faults, and who did what when."""
    faults = "\n".join(f"  {one.at_seconds:7.1f} s  {one.name}" for one in result.plan)
    found = "\n".join(str(one) for one in result.violations[:3])
    parts = f"queue {result.queue}, {'with' if result.relay else 'without'} relay"
    title = f"seed {result.seed} ({parts}) broke"
    return f"{title}\n{found}\nwith {len(result.plan)} faults:\n{faults}\n{result.trace}"


def keep(result: Result, corpus: Path) -> Path:
    """Write a failure down among those that are run for ever."""
    why = result.violations[0].invariant
    case = Case(
        seed=result.seed,
        why=why,
        faults=tuple((one.at_seconds, one.name, one.salt) for one in result.plan),
        queue=result.queue,
        relay=result.relay,
    )
    corpus.mkdir(parents=True, exist_ok=True)
    path = corpus / f"{why}-{result.seed}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(case), indent=1) + b"\n")
    return path


def cases(corpus: Path) -> dict[str, Case]:
    """Every history that is kept."""
    return {
        path.stem: msgspec.json.decode(path.read_bytes(), type=Case) for path in sorted(corpus.glob("*.json"))
    }
