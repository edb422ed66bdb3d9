"""A campaign: the histories of many seeds in many processes, summed up in one table of figures.

Half of the seeds are fixed, half follow from a hash of the source. Every change of the product is therefore
tried on new histories, and everyone with the same source runs the same ones.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from endwell.runtime.child_process import ChildProcess, start_process
from endwell.runtime.clock import SystemClock
from endwell.testing.installation import HOURS
from endwell.testing.oracle.registry import INVARIANTS
from endwell.testing.shrinking import describe_failure, shrink, simulate
from endwell.testing.simulation import SimulationResult

PACKAGE: Final = Path(__file__).parents[1]
SILENCE_SECONDS: Final = 600.0
"""A history that takes longer than this hangs, which is a failure too."""
LEAST_FAULTS_PER_SEED: Final = 12.5
LEAST_KINDS: Final = 25


def choose_seeds(count: int, package: Path = PACKAGE) -> list[int]:
    """Choose seeds: the first half is always the same, the second half follows from the source."""
    fixed = list(range(1, count // 2 + 1))
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".sql"):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    base = int.from_bytes(digest.digest()[:6])
    return [*fixed, *(base + number for number in range(count - len(fixed)))]


class Figures(msgspec.Struct, frozen=True):
    """The sum of some histories."""

    seeds: int = 0
    tasks: int = 0
    events: int = 0
    commits: int = 0
    judged: int = 0
    faults: dict[str, int] = {}
    ended: dict[str, int] = {}
    failures: tuple[str, ...] = ()

    @classmethod
    def from_result(cls, result: SimulationResult) -> Figures:
        """Return the figures of one history; a failure is shrunk first."""
        failures = () if result.is_good else (describe_failure(shrink(result)),)
        counts = (result.tasks, result.events, result.commits, result.judged)
        return cls(1, *counts, dict(result.faults), dict(result.ended), failures)

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.seeds + other.seeds,
            self.tasks + other.tasks,
            self.events + other.events,
            self.commits + other.commits,
            self.judged + other.judged,
            dict(Counter(self.faults) + Counter(other.faults)),
            dict(Counter(self.ended) + Counter(other.ended)),
            (*self.failures, *other.failures),
        )

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())

    @property
    def is_good(self) -> bool:
        """Whether nothing failed, and enough faults of enough kinds happened in these histories."""
        has_faults = self.fault_count >= LEAST_FAULTS_PER_SEED * self.seeds
        has_kinds = len(self.faults) >= LEAST_KINDS or self.seeds < LEAST_KINDS
        return bool(self.seeds) and not self.failures and has_faults and has_kinds

    def to_text(self) -> str:
        """Show the table, then the faults by kind, then the failures."""
        rows = {
            f"histories of {HOURS:g} simulated hours": self.seeds,
            "tasks in them, each ended exactly once": self.tasks,
            "events logged, each task's row the fold of its own": self.events,
            "transactions, each judged": self.commits,
            f"judgements by {len(INVARIANTS)} invariants": self.judged,
            f"faults injected, of {len(self.faults)} kinds": self.fault_count,
            "histories in which something did not hold": len(self.failures),
        }
        lines = [f"{what:<52}{count:>12,}" for what, count in rows.items()]
        kinds = sorted(self.faults.items(), key=lambda item: -item[1])
        lines += ["", "faults by kind:", *(f"  {name:<36}{count:>7,}" for name, count in kinds)]
        return "\n".join([*lines, *(f"\n{failure}" for failure in self.failures)])


@dataclass(frozen=True)
class Campaign:
    """Seeds shared out among `jobs` processes; by default one process for each processor."""

    seeds: Sequence[int]
    jobs: int = 0
    seconds: float = 0.0
    """Start no history after this time; 0 is no limit."""

    def run(self) -> Figures:
        """Run all histories, or as many as the time allows."""
        jobs = max(1, min(self.jobs or os.cpu_count() or 1, len(self.seeds)))
        children = [self._start_child(self.seeds[number::jobs]) for number in range(jobs)]
        total = Figures()
        try:
            while children:
                for child in list(children):
                    line = child.read_line(SILENCE_SECONDS)
                    if line is None:
                        children.remove(child)
                        total += _figures_of_end(child)
                    else:
                        total += msgspec.json.decode(line, type=Figures)
        finally:
            for child in children:
                child.kill()
                child.wait()
        return total

    def _start_child(self, seeds: Sequence[int]) -> ChildProcess:
        words = [str(self.seconds), *map(str, seeds)]
        return start_process([sys.executable, "-m", "endwell.testing.campaign", *words])


def _figures_of_end(child: ChildProcess) -> Figures:
    code = child.wait()
    child.close()
    return Figures(failures=(f"a process of the campaign ended with code {code}",)) if code else Figures()


def run_seeds(seconds: float, seeds: Sequence[int]) -> None:
    """Run histories in a child process of the campaign; print one line of figures for each."""
    clock = SystemClock()
    until = clock.monotonic() + seconds if seconds else float("inf")
    for seed in seeds:
        if clock.monotonic() > until:
            break
        sys.stdout.write(msgspec.json.encode(Figures.from_result(simulate(seed))).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run_seeds(float(sys.argv[1]), [int(word) for word in sys.argv[2:]])
