"""`python -m tests.proof.campaign.soak --hours 8 [--totals FILE]`: the campaign with new seeds for hours.

Totals are kept in a file, also when a run is killed, and the next run continues from them. Parts that can be
done completely come first, once for each source. Then the part that has reached the smallest share of its
figure is next. A failure is kept with its seed, and counts until it is removed from the file. Exit 1 if there
is a failure or a figure is not reached yet.
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

from tests import tally
from tests.proof.campaign.__main__ import NUMBERED, Progress
from tests.proof.campaign.driver import Driver, Piece
from tests.proof.campaign.figures import Totals, is_good, table
from tests.proof.campaign.outlook import Outlook
from tests.proof.campaign.parts import Part
from tests.proof.campaign.plan import PARTS, SOAK, Plan
from tests.seeds import source_digest

TOTALS: Final = Path("soak-totals.json")


def read_totals(path: Path) -> Totals:
    """Read the totals of earlier runs."""
    return msgspec.json.decode(path.read_bytes(), type=Totals) if path.exists() else Totals()


def keep_totals(path: Path, totals: Totals) -> None:
    """Write the totals atomically."""
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(totals, order="deterministic"), indent=1))
    beside.replace(path)


def begin_with(source: str, plan: Plan, totals: Totals) -> None:
    """Forget the parts that were done completely with another source."""
    for part in plan.parts:
        if part.repeats and totals.sources.get(part.name) != source:
            totals.sources[part.name] = source
            totals.done.pop(part.name, None)
            for name in part.figures:
                totals.forget(name)


def next_part(plan: Plan, totals: Totals) -> Part | None:
    """Return the part that has reached the smallest share of its figure, the first of several."""
    wanted = {figure.name: figure.wanted for figure in plan.figures}

    def share(part: Part) -> float:
        # a part whose pieces reach nothing must not keep the others waiting
        hoped = totals.begun.get(part.name, 0) * part.piece // 2
        return max(totals.reached(part.counts), hoped) / wanted[part.counts]

    return min((part for part in plan.parts if not part.repeats), key=share, default=None)


def new_seed(part: Part, number: int) -> int:
    """Return a seed that was never used; numbered parts begin with their fixed numbers."""
    if part.name in NUMBERED:
        return number
    digest = hashlib.sha256(source_digest() + f"{part.name} {number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") + 1


def complete_pieces(plan: Plan, totals: Totals) -> Iterator[Piece]:
    """Yield the pieces of complete parts that were not done yet."""
    for part in plan.parts:
        numbers = range(1, (part.rounds or 1) + 1) if part.repeats else ()
        for number in sorted(set(numbers) - totals.done.get(part.name, set())):
            yield Piece(part.name, number, part.piece)


def pieces_until(plan: Plan, totals: Totals, until: float) -> Iterator[Piece]:
    """Yield pieces until the time is over."""
    for piece in list(complete_pieces(plan, totals)):
        if time.monotonic() >= until:
            return
        yield piece
    while time.monotonic() < until and (part := next_part(plan, totals)) is not None:
        yield Piece(part.name, new_seed(part, totals.begun.get(part.name, 0) + 1), part.piece)


def run(plan: Plan, path: Path, hours: float, jobs: int = 0) -> int:
    """Run for this many hours; then print the table of all runs together, and what is missing."""
    totals = read_totals(path)
    begin_with(tally.digest(), plan, totals)
    progress = Progress(plan, totals)
    outlook = Outlook(plan, totals)
    began = time.monotonic()
    spent_before = totals.seconds
    once = {part.name for part in plan.parts if part.repeats}

    def changed() -> None:
        totals.seconds = spent_before + time.monotonic() - began
        keep_totals(path, totals)
        progress.show()

    def ended(piece: Piece) -> None:
        if piece.part in once:
            totals.done.setdefault(piece.part, set()).add(piece.seed)

    driver = Driver(totals, jobs, changed, ended)
    try:
        driver.run(pieces_until(plan, totals, began + hours * 3600))
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
    changed()
    sys.stdout.write(f"\n{table(plan.figures, totals)}\n\n")
    sys.stdout.write(f"{outlook.text(driver.spent, time.monotonic() - began)}\n")
    sys.stdout.write(f"{totals.seconds / 3600:.2f} hours in all, kept in {path}\n")
    return 0 if is_good(plan.figures, totals) else 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.campaign.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0, help="start no piece after this time (8)")
    parser.add_argument("--totals", type=Path, default=TOTALS, help=f"where totals are kept ({TOTALS})")
    parser.add_argument(
        "--jobs", type=int, default=0, help="number of processes; one for each processor by default"
    )
    parser.add_argument("--only", action="append", choices=list(PARTS), help="these parts only")
    asked = parser.parse_args(arguments)
    plan = SOAK if asked.only is None else SOAK.only(asked.only)
    return run(plan, asked.totals, asked.hours, asked.jobs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
