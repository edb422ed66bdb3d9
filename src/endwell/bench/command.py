"""`endwell bench`: real worker processes, default settings, full durability, and no figure without proof."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from endwell.bench import bare_postgres, bare_sqlite
from endwell.bench.drain import Measured, Measurement, compared, measurements
from endwell.bench.idle import idle
from endwell.bench.place import Ground
from endwell.bench.rows import BARE, FULL, QUICK, USUAL, Row, Sizes
from endwell.bench.steps import inside, woken
from endwell.bench.table import as_text, machine
from endwell.cli.base.options import EndwellCommand, Options, pass_asked
from endwell.cli.base.output import say, show
from endwell.demo.crew import run_interruptibly
from endwell.errors import EndwellError
from endwell.runtime.base import Runtime


@click.command(cls=EndwellCommand)
@click.option("--quick", is_flag=True, help="Small sizes: does it work, not how fast is it.")
@click.option("--full", is_flag=True, help="Also a backlog of a million; takes several minutes.")
@click.option(
    "--only", metavar="ROW", multiple=True, help="Measure only what gives this row; may be repeated."
)
@click.option("--redis", metavar="URL", help="Measure the queue on Redis Streams at this server instead.")
@pass_asked
def bench(asked: Options, quick: bool, full: bool, only: tuple[str, ...], redis: str | None) -> int:
    """Measure speed on this machine.

    Each figure is kept only if afterwards every result is there and the log verifies; exit 1 if one
    was dropped. On a fresh SQLite file, or in fresh namespaces of --store.

    \b
      endwell bench --full --json > figures.json
      endwell bench --only drain_1_worker --only bare_drain_1_worker
    """
    if quick and full:
        raise click.UsageError("--quick and --full contradict each other")
    sizes = QUICK if quick else FULL if full else USUAL
    with tempfile.TemporaryDirectory(prefix="endwell-bench-", ignore_cleanup_errors=True) as made:
        run = BenchRun(Runtime.system(), Path(made), asked.store, sizes, redis)
        run.choose(only)
        document = run_interruptibly(run.go())
    show(asked, document, as_text)
    return 1 if run.dropped else 0


class BenchRun:
    """Collects the rows that hold."""

    def __init__(
        self, runtime: Runtime, directory: Path, url: str | None, sizes: Sizes, redis: str | None
    ) -> None:
        self._runtime = runtime
        self._directory = directory
        self._ground = Ground(runtime, directory, url, redis)
        self._sizes = sizes
        self._measurements = self._all()
        self._rows: list[Row] = []
        self.dropped = 0

    def _all(self) -> list[Measurement]:
        found = measurements(self._ground, self._sizes)
        if self._ground.is_streamed:
            return [*found, woken(self._ground, self._sizes)]  # the rest is the same whatever carries turns
        bare = Measurement("bare loop", tuple(BARE + name for name in bare_sqlite.GIVES), self._bare)
        return [
            *found,
            *inside(self._ground, self._sizes),
            idle(self._ground, self._sizes.idle_seconds),
            bare,
        ]

    def choose(self, only: Sequence[str]) -> None:
        """Leave out what gives none of these rows; all of it when none is named."""
        known = {name for each in self._measurements for name in each.gives}
        if unknown := sorted(set(only) - known):
            raise click.UsageError(f"no such row: {unknown[0]}; there are {', '.join(sorted(known))}")
        if only:
            self._measurements = [each for each in self._measurements if set(each.gives) & set(only)]

    async def go(self) -> dict[str, Any]:
        """Measure everything, one thing after the other."""
        settings = await self._settings()
        for measurement in self._measurements:
            await self._keep(measurement)
        self._rows += compared(self._rows, self._sizes.backlogs)
        rows = [msgspec.to_builtins(row) for row in self._rows]
        return {"machine": machine(), "settings": settings, "rows": rows, "dropped": self.dropped}

    async def _settings(self) -> dict[str, Any]:
        """What the store itself says of its durability, and what the worker is set to."""
        app = self._ground.app()
        async with app.connect() as node:
            read = await node.store.settings()
        return {**read, "worker.concurrency": app.settings.worker.concurrency}

    async def _bare(self) -> Measured:
        sizes, timer = self._sizes, self._runtime.clock.monotonic
        about = {"one_by_one": sizes.one_by_one, "bulk": sizes.bulk}
        if self._ground.kind == "sqlite":
            path = self._directory / "bare.db"
            found = await self._runtime.in_thread(partial(bare_sqlite.measure, path, timer, **about))
        else:
            found = await bare_postgres.measure(self._ground.app().url, timer, **about)
        kind = self._ground.kind
        rows = [Row(BARE + name, kind, rate, "tasks/s", n) for name, (rate, n) in found.items()]
        return Measured(rows, [])

    async def _keep(self, measurement: Measurement) -> None:
        name = measurement.title
        try:
            measured = await measurement.run()
        except (TimeoutError, EndwellError) as error:
            measured = Measured([], [f"{type(error).__name__}: {error}"])
        if measured.problems:
            self.dropped += 1
            say(f"{name}: NO FIGURE, {len(measured.problems)} problems, first: {measured.problems[0]}")
            return
        self._rows += measured.rows
        say(f"{name}: " + ", ".join(f"{row.value:,.2f} {row.unit} ({row.name})" for row in measured.rows))
