"""`endwell verify`: the promises, tried on this machine: many histories, many faults, one table."""

from __future__ import annotations

from typing import Any

import click

from endwell.cli.base.options import EndwellCommand, Options, pass_asked
from endwell.cli.base.output import say, show
from endwell.testing.campaign import Campaign, Figures, choose_seeds


@click.command(cls=EndwellCommand)
@click.option("--seconds", type=click.FloatRange(min=1), default=100.0, help="Begin nothing new after that.")
@click.option("--seeds", "count", type=click.IntRange(min=1), default=400, help="So many histories at most.")
@click.option("--jobs", type=click.IntRange(min=1), help="So many processes; one for each processor.")
@pass_asked
def verify(asked: Options, seconds: float, count: int, jobs: int | None) -> int:
    """Try the promises on this machine.

    Simulated hours, hundreds of faults, every transaction judged. Takes about two minutes; nothing is
    read or written but temporary files. Exit 1 if anything did not hold; the shortest history that
    shows it is printed.

    \\b
      endwell verify
      endwell verify --seconds 20 --json
    """
    say(f"trying for {seconds:g} s ...")
    figures = Campaign(_interleaved(choose_seeds(count)), jobs or 0, seconds=seconds).run()
    show(asked, _document(figures), lambda _: figures.text())
    return 0 if figures.is_good else 1


def _interleaved(all_seeds: list[int]) -> list[int]:
    """Fixed ones and fresh ones by turns: however few there is time for, half are fresh."""
    half = len(all_seeds) // 2
    pairs = zip(all_seeds[:half], all_seeds[half:], strict=False)
    return [seed for pair in pairs for seed in pair] or all_seeds


def _document(figures: Figures) -> dict[str, Any]:
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
