"""`endwell demo`: tasks end although processes are killed."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.console import Console

from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import write_json
from endwell.demo.crew import run_interruptibly
from endwell.demo.records import find_shortcomings
from endwell.demo.run import Plan, run
from endwell.demo.screen import LiveScreen, PlainScreen, show_table
from endwell.runtime.clock import SystemClock
from endwell.runtime.ids import SystemIds

LIMIT_SECONDS = 50.0
"""When all tasks must have ended; tasks that have not count as stuck."""
_TASKS = click.IntRange(40, 2000)


@click.command(cls=EndwellCommand)
@click.option("--tasks", type=_TASKS, default=200, show_default=True, help="Number of tasks.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed for jobs and victims.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep store, sink and logs in this directory.")
@pass_options
def demo(options: Options, tasks: int, seed: int, keep: Path | None) -> None:
    """200 tasks, workers killed -9 while you watch: none lost, none stuck, none finished twice.

    Starts a PMO and three workers on a fresh SQLite file (or in a fresh namespace of --store), kills
    and freezes them while they hold tasks, and lets a separate process read store and sink. Exits
    with 1 unless all of that could be shown.

    \b
      endwell demo --tasks 500 --keep what-happened
    """
    clock, console = SystemClock(), Console()
    with _run_directory(keep) as directory:
        plan = Plan(
            url=options.store or f"sqlite:///{directory / 'demo.db'}",
            namespace=f"demo-{SystemIds(clock).new()}",
            directory=directory,
            tasks=tasks,
            seed=seed,
            limit_seconds=LIMIT_SECONDS,
        )
        begin = clock.monotonic()
        is_live = console.is_terminal and not options.json
        plain = PlainScreen(clock, tasks, on_stderr=bool(options.json))
        show = LiveScreen(clock, tasks, console) if is_live else plain
        with show:
            table = run_interruptibly(run(plan, show))
        seconds, wrong = clock.monotonic() - begin, find_shortcomings(table)
    if options.json:
        facts = {"seconds": round(seconds, 1), "ok": not wrong, "problems": wrong}
        write_json({**msgspec.to_builtins(table), **facts})
    else:
        show_table(table, console, seconds)
    if wrong:
        raise SystemExit(1)


@contextlib.contextmanager
def _run_directory(keep: Path | None) -> Iterator[Path]:
    """A directory that only its owner may read; removed at the end unless it is kept."""
    if keep is not None:
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="endwell-demo-", ignore_cleanup_errors=True) as made:
        yield Path(made)
