"""`endwell demo`: tasks end, whatever is killed. Everything in it is real: processes, signals, store."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.console import Console

from endwell.cli.base.options import EndwellCommand, Options, pass_asked
from endwell.cli.base.output import write_json
from endwell.demo.crew import run_interruptibly
from endwell.demo.run import Plan, run
from endwell.demo.screen import PlainScreen, Screen, show_table
from endwell.demo.table import Table, shortcomings
from endwell.runtime.clock import Clock, SystemClock
from endwell.runtime.ids import SystemIds

LIMIT_SECONDS = 50.0
"""When all is to be at rest; what is not by then shows as stuck."""


@click.command(cls=EndwellCommand)
@click.option(
    "--tasks", type=click.IntRange(40, 2000), default=200, show_default=True, help="How many tasks."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Which tasks and victims.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep store, sink and logs in this directory.")
@pass_asked
def demo(asked: Options, tasks: int, seed: int, keep: Path | None) -> None:
    """200 tasks, workers killed -9 while you watch: none lost, none stuck, none finished twice.

    Starts a PMO and three workers on a fresh SQLite file (or in a fresh namespace of --store), kills
    and freezes them while they hold tasks, and has a separate process read store and sink. Exits
    with 1 unless all of that could be shown.

    \b
      endwell demo --tasks 500 --keep what-happened
    """
    clock = SystemClock()
    with _directory(keep) as directory:
        plan = Plan(
            url=asked.store or f"sqlite:///{directory / 'demo.db'}",
            namespace=f"demo-{SystemIds(clock).new()}",
            directory=directory,
            tasks=tasks,
            seed=seed,
            limit_seconds=LIMIT_SECONDS,
        )
        begin = clock.monotonic()
        table = _watched(plan, clock, asked.json)
        _report(table, clock.monotonic() - begin, asked.json)
    if shortcomings(table):
        raise SystemExit(1)


def _watched(plan: Plan, clock: Clock, as_json: bool) -> Table:
    console = Console()
    is_live = console.is_terminal and not as_json
    show = Screen(clock, console) if is_live else PlainScreen(clock, on_stderr=as_json)
    with show:
        return run_interruptibly(run(plan, show))


def _report(table: Table, seconds: float, as_json: bool) -> None:
    if not as_json:
        show_table(table, Console(), seconds)
        return
    wrong = shortcomings(table)
    shown = {**msgspec.to_builtins(table), "seconds": round(seconds, 1), "ok": not wrong, "problems": wrong}
    write_json(shown)


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """For the owner alone; removed at the end unless it is to be kept."""
    if keep is not None:
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="endwell-demo-", ignore_cleanup_errors=True) as made:
        yield Path(made)
