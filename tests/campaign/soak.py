"""`python -m tests.campaign.soak --hours 8 [--totals FILE]`: the same parts, with ever new seeds, until then.

Totals are kept in a file, also of a run that is interrupted; the next one goes on where it was. A part gets
the more time the more of its figure is missing. What failed is kept with its seed. Exit 1 if anything failed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tests.campaign.__main__ import NUMBERED, Progress
from tests.campaign.driver import Driver, Piece
from tests.campaign.figures import Totals, is_good, table
from tests.campaign.parts import Part
from tests.campaign.plan import PARTS, SOAK, Plan
from tests.seeds import source_digest

TOTALS: Final = Path("soak-totals.json")


def read_totals(path: Path) -> Totals:
    """What earlier runs came to."""
    return msgspec.json.decode(path.read_bytes(), type=Totals) if path.exists() else Totals()


def keep_totals(path: Path, totals: Totals) -> None:
    """Whole or not at all, whatever happens meanwhile."""
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(totals, order="deterministic"), indent=1))
    beside.replace(path)


def next_part(plan: Plan, totals: Totals) -> Part:
    """The one that has reached the smallest share of its figure; the first in the list if several have."""
    wanted = {figure.name: figure.wanted for figure in plan.figures}

    def share(part: Part) -> float:
        begun = totals.begun.get(part.name, 0)
        if part.repeats:
            return begun / (part.rounds or 1)
        # one whose pieces come to nothing must not keep all others waiting
        return max(totals.reached(part.counts), begun * part.piece // 2) / wanted[part.counts]

    return min(plan.parts, key=share)


def seed_of(part: Part, number: int) -> int:
    """Ever new; what is numbered begins with its fixed ones."""
    if part.name in NUMBERED:
        return (number - 1) % (part.rounds or 1) + 1 if part.repeats else number
    digest = hashlib.sha256(source_digest() + f"{part.name} {number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") + 1


def endless(plan: Plan, totals: Totals, until: float) -> Iterator[Piece]:
    """A next piece as long as there is time."""
    while time.monotonic() < until:
        part = next_part(plan, totals)
        yield Piece(part.name, seed_of(part, totals.begun.get(part.name, 0) + 1), part.piece)


def run(plan: Plan, path: Path, hours: float, jobs: int = 0) -> int:
    """So long; then the table of all runs together. A failure counts in this run and is kept for later."""
    totals = read_totals(path)
    failed_before = len(totals.failed)
    progress = Progress(plan, totals)
    began = time.monotonic()
    spent_before = totals.seconds

    def changed() -> None:
        totals.seconds = spent_before + time.monotonic() - began
        keep_totals(path, totals)
        progress.show()

    Driver(totals, jobs, changed).run(endless(plan, totals, began + hours * 3600))
    changed()
    sys.stdout.write(f"\n{table(plan.figures, totals)}\n\n")
    verdict = "every figure is reached" if is_good(plan.figures, totals) else "to be continued"
    sys.stdout.write(f"{totals.seconds / 3600:.2f} hours in all, kept in {path}: {verdict}\n")
    return 1 if len(totals.failed) > failed_before else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0, help="begin nothing new after that (8)")
    parser.add_argument("--totals", type=Path, default=TOTALS, help=f"where totals are kept ({TOTALS})")
    parser.add_argument("--jobs", type=int, default=0, help="so many processes; one for each processor")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="these parts only")
    asked = parser.parse_args(arguments)
    plan = SOAK if asked.only is None else SOAK.only(asked.only)
    return run(plan, asked.totals, asked.hours, asked.jobs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
