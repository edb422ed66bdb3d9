"""`endwell verify`: test the promises on this machine by many simulated histories with faults."""

from __future__ import annotations

from typing import Any

import click

from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import show, write_remark
from endwell.testing.campaign import Campaign, Figures, choose_seeds


@click.command(cls=EndwellCommand)
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=100.0, help="Start no new history after this time."
)
@click.option("--seeds", "count", type=click.IntRange(min=1), default=400, help="Histories at most.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes; default: one for each processor.")
@pass_options
def verify(options: Options, seconds: float, count: int, jobs: int | None) -> int:
    """Test the promises on this machine.

    Simulates hours with hundreds of faults and judges every transaction. Takes about two minutes; only
    temporary files are read and written. Exit 1 if a promise was broken; the shortest history that
    shows it is printed.

    \\b
      endwell verify
      endwell verify --seconds 20 --json
    """
    write_remark(f"testing for {seconds:g} s ...")
    figures = Campaign(_interleave_seeds(choose_seeds(count)), jobs or 0, seconds=seconds).run()
    show(options, _figures_document(figures), lambda _: figures.to_text())
    return 0 if figures.is_good else 1


def _interleave_seeds(all_seeds: list[int]) -> list[int]:
    """Alternate fixed and fresh seeds: if time is short, half of the histories are fresh."""
    half = len(all_seeds) // 2
    pairs = zip(all_seeds[:half], all_seeds[half:], strict=False)
    return [seed for pair in pairs for seed in pair] or all_seeds


def _figures_document(figures: Figures) -> dict[str, Any]:
    return {
        "ok": figures.is_good,
        "histories": figures.seeds,
        "tasks": figures.tasks,
        "events": figures.events,
        "transactions": figures.commits,
        "judgements": figures.judged,
        "faults": figures.faults,
        "ended": figures.ended,
        "failures": list(figures.failures),
    }
