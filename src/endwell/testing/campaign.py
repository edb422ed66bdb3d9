"""Many seeds, one table: `python -m endwell.testing.campaign --seeds 400`. Fails if a figure is not reached.

Half of the seeds are fixed, half follow from a hash of the source: every change of the product is tried on
histories that nobody has seen before, and everybody who has the same source sees the same ones.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from endwell.runtime.child_process import ChildProcess, start_process
from endwell.runtime.clock import SystemClock
from endwell.testing.installation import HOURS
from endwell.testing.oracle.registry import INVARIANTS
from endwell.testing.shrinking import keep, shrink, simulate, told
from endwell.testing.simulation import SimulationResult

PACKAGE: Final = Path(__file__).parents[1]
SILENCE_SECONDS: Final = 600.0
"""A seed that takes longer than this hangs, and that is a failure too."""
LEAST_FAULTS_PER_SEED: Final = 12.5
LEAST_KINDS: Final = 25


def seeds(count: int, package: Path = PACKAGE) -> list[int]:
    """The first half is always the same."""
    fixed = list(range(1, count // 2 + 1))
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".sql"):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    base = int.from_bytes(digest.digest()[:6])
    return [*fixed, *(base + number for number in range(count - len(fixed)))]


class Figures(msgspec.Struct, frozen=True):
    """What some seeds came to."""

    seeds: int = 0
    tasks: int = 0
    events: int = 0
    commits: int = 0
    judged: int = 0
    faults: dict[str, int] = {}
    ended: dict[str, int] = {}
    failures: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: SimulationResult) -> Figures:
        """Of one seed; a failure is made small first."""
        failures = () if result.is_good else (told(shrink(result)),)
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
        """Nothing failed, and the figures are those that a campaign of so many seeds must reach."""
        is_enough = self.fault_count >= LEAST_FAULTS_PER_SEED * self.seeds
        has_kinds = len(self.faults) >= LEAST_KINDS or self.seeds < LEAST_KINDS
        return bool(self.seeds) and not self.failures and is_enough and has_kinds

    def rows(self) -> list[tuple[str, str]]:
        """As a table: what, how many."""
        return [
            (f"histories of {HOURS:g} simulated hours", f"{self.seeds:,}"),
            ("tasks in them, each ended exactly once", f"{self.tasks:,}"),
            ("events logged, each task's row the fold of its own", f"{self.events:,}"),
            ("transactions, each judged", f"{self.commits:,}"),
            (f"judgements by {len(INVARIANTS)} invariants", f"{self.judged:,}"),
            (f"faults injected, of {len(self.faults)} kinds", f"{self.fault_count:,}"),
            ("histories in which something did not hold", f"{len(self.failures):,}"),
        ]

    def text(self) -> str:
        """The table, then the faults by kind."""
        lines = [f"{what:<52}{count:>12}" for what, count in self.rows()]
        kinds = sorted(self.faults.items(), key=lambda item: -item[1])
        lines += ["", "faults by kind:"]
        lines += [f"  {name:<36}{count:>7,}" for name, count in kinds]
        return "\n".join([*lines, *(f"\n{failure}" for failure in self.failures)])


@dataclass(frozen=True)
class Campaign:
    """Seeds shared out among as many processes as there are processors."""

    seeds: Sequence[int]
    jobs: int = 0
    corpus: Path | None = None
    seconds: float | None = None
    say: Callable[[str], None] = lambda line: None

    def run(self) -> Figures:
        """All of them, or as many as the time allows."""
        jobs = max(1, min(self.jobs or os.cpu_count() or 1, len(self.seeds)))
        children = [self._child(self.seeds[number::jobs]) for number in range(jobs)]
        total = Figures()
        try:
            while children:
                for child in list(children):
                    line = child.read_line(SILENCE_SECONDS)
                    if line is None:
                        children.remove(child)
                        total += self._ended(child)
                    else:
                        total += msgspec.json.decode(line, type=Figures)
                        self.say(f"{total.seeds} histories, {len(total.failures)} broken")
        finally:
            for child in children:
                child.kill()
                child.wait()
        return total

    def _child(self, some: Sequence[int]) -> ChildProcess:
        argv = [sys.executable, "-m", "endwell.testing.campaign", "--these", ",".join(map(str, some))]
        argv += ["--corpus", str(self.corpus)] if self.corpus else []
        argv += ["--seconds", str(self.seconds)] if self.seconds else []
        return start_process(argv)

    def _ended(self, child: ChildProcess) -> Figures:
        code = child.wait()
        child.close()
        return Figures(failures=(f"a process of the campaign ended with code {code}",)) if code else Figures()


def carry_out(some: Sequence[int], corpus: Path | None, seconds: float | None) -> None:
    """In a process of the campaign: one line for each seed."""
    clock = SystemClock()
    until = None if seconds is None else clock.monotonic() + seconds
    for seed in some:
        if until is not None and clock.monotonic() > until:
            break
        result = simulate(seed)
        if corpus is not None and not result.is_good:
            keep(shrink(result), corpus)
        sys.stdout.write(msgspec.json.encode(Figures.of(result)).decode() + "\n")
        sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if anything failed or a figure was not reached."""
    parser = argparse.ArgumentParser(prog="python -m endwell.testing.campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=400, help="how many histories (400)")
    parser.add_argument("--jobs", type=int, default=0, help="how many processes; one for each processor")
    parser.add_argument("--seconds", type=float, default=None, help="begin no history after that time")
    parser.add_argument("--corpus", type=Path, default=None, help="where failures are kept")
    parser.add_argument("--these", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.these:
        carry_out([int(seed) for seed in asked.these.split(",")], asked.corpus, asked.seconds)
        return 0
    campaign = Campaign(seeds(asked.seeds), asked.jobs, asked.corpus, asked.seconds, _say)
    figures = campaign.run()
    sys.stdout.write(figures.text() + "\n")
    return 0 if figures.is_good else 1


def _say(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line}")


if __name__ == "__main__":
    sys.exit(main())
