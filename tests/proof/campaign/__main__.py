"""`python -m tests.proof.campaign [--only PART ...] [--scale 0.1] [--jobs 2]`: exit 1 if a figure is missed.

Runs every part of the campaign, some pieces at a time; then prints the wanted and the reached figures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Final

from tests import tally
from tests.proof.campaign.driver import Driver, Piece
from tests.proof.campaign.figures import Line, Totals, is_good, table
from tests.proof.campaign.plan import CAMPAIGN, PARTS, Plan
from tests.proof.planted.defects import DEFECTS
from tests.seeds import seeds

SAY_SECONDS: Final = 20.0
WAITING: Final = "faults"
NUMBERED: Final = ("boundaries", "planted", "states")
"""Parts whose pieces are numbered instead of seeded."""


def without_what_was_just_done(plan: Plan, totals: Totals) -> Plan:
    """Leave out planted defects that a whole `make test` of this very source has just caught."""
    caught = tally.left()["planted defects caught"]
    if caught < len(DEFECTS):
        return plan
    totals.add(Line(kinds={"defects": [defect.name for defect in DEFECTS]}))
    sys.stderr.write(f"{caught} planted defects were caught by make test, with this very source\n")
    return Plan(tuple(part for part in plan.parts if part.name != "planted"), plan.figures)


def pieces(plan: Plan) -> Iterator[Piece]:
    """Yield the pieces, longest parts first. Half of the seeds are fixed, half follow from the source."""
    wanted = {figure.name: figure.wanted for figure in plan.figures}
    for part in plan.parts:
        count = part.pieces(wanted.get(part.counts, 1))
        chosen = range(1, count + 1) if part.name in NUMBERED else seeds(count)
        for seed in chosen:
            yield Piece(part.name, seed, part.piece)


class Progress:
    """Reports progress: on a terminal in one changing line, otherwise in a line every 20 seconds."""

    def __init__(self, plan: Plan, totals: Totals) -> None:
        self._plan = plan
        self._totals = totals
        self._began = time.monotonic()
        self._said_at = self._began
        self._told = len(totals.failed)

    def show(self) -> None:
        """Print new failures at once, and the state of the run when its time has come."""
        for text in self._totals.failed[self._told :]:
            sys.stderr.write(f"DID NOT HOLD: {text.splitlines()[0]}\n")
        self._told = len(self._totals.failed)
        now = time.monotonic()
        pause = 0.2 if sys.stderr.isatty() else SAY_SECONDS
        if now - self._said_at < pause:
            return
        self._said_at = now
        end = "\r" if sys.stderr.isatty() else "\n"
        sys.stderr.write(f"{now - self._began:5.0f} s  {self._text()}{end}")
        sys.stderr.flush()

    def _text(self) -> str:
        shares = []
        for figure in self._plan.figures:
            if not figure.per:
                share = min(100, 100 * figure.reached(self._totals) // max(1, figure.wanted))
                shares.append(f"{figure.name} {share}%")
        return ", ".join([*shares, f"{len(self._totals.failed)} failed"])


def run(plan: Plan, jobs: int = 0) -> int:
    """Run the whole plan, then print its table."""
    totals = Totals()
    driver = Driver(totals, jobs, Progress(plan, totals).show)
    began = time.monotonic()
    found = list(pieces(without_what_was_just_done(plan, totals)))
    try:
        driver.run(
            iter([one for one in found if one.part != WAITING]),
            iter([one for one in found if one.part == WAITING]),
        )
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
    took = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in driver.spent.items())
    sys.stdout.write(f"\n{table(plan.figures, totals)}\n\n")
    sys.stdout.write(f"in {time.monotonic() - began:.0f} s ({took})\n")
    return 0 if is_good(plan.figures, totals) else 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.campaign", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(PARTS), help="these parts only")
    parser.add_argument("--scale", type=float, default=1.0, help="a share of it, to try the campaign itself")
    parser.add_argument(
        "--jobs", type=int, default=0, help="number of processes; one for each processor by default"
    )
    asked = parser.parse_args(arguments)
    plan = CAMPAIGN if asked.only is None else CAMPAIGN.only(asked.only)
    return run(plan if asked.scale == 1.0 else plan.scaled(asked.scale), asked.jobs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
