"""`endwell bench`: real worker processes, default settings, full durability."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from endwell.bench import bare_postgres, bare_sqlite
from endwell.bench.idle import idle_measurement
from endwell.bench.measurements import Measurement, Measurements
from endwell.bench.place import Ground
from endwell.bench.rows import (
    BARE,
    FULL,
    QUICK,
    USUAL,
    Row,
    Sizes,
    as_text,
    compare_backlogs,
    describe_machine,
)
from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import show, write_remark
from endwell.demo.crew import run_interruptibly
from endwell.errors import EndwellError
from endwell.runtime.base import Runtime


@click.command(cls=EndwellCommand)
@click.option("--quick", is_flag=True, help="Small sizes: does it work, not how fast is it.")
@click.option("--full", is_flag=True, help="Also a backlog of a million; takes several minutes.")
@click.option("--only", metavar="ROW", multiple=True, help="Measure only what gives this row; repeatable.")
@click.option("--redis", metavar="URL", help="Measure the queue on Redis Streams at this server instead.")
@pass_options
def bench(options: Options, quick: bool, full: bool, only: tuple[str, ...], redis: str | None) -> int:
    """Measure speed on this machine.

    A figure is kept only if afterwards every result is there and the log verifies; exit 1 if one
    was dropped. On a fresh SQLite file, or in fresh namespaces of --store.

    \b
      endwell bench --full --json > figures.json
      endwell bench --only drain_1_worker --only bare_drain_1_worker
    """
    if quick and full:
        raise click.UsageError("--quick and --full contradict each other")
    sizes = QUICK if quick else FULL if full else USUAL
    runtime = Runtime.system()
    with tempfile.TemporaryDirectory(prefix="endwell-bench-", ignore_cleanup_errors=True) as made:
        ground = Ground(runtime, Path(made), options.store, redis)
        chosen = _choose_measurements(_all_measurements(ground, sizes, runtime, Path(made)), only)
        document = run_interruptibly(_run(chosen, ground, sizes))
    show(options, document, as_text)
    return 1 if document["dropped"] else 0


def _all_measurements(ground: Ground, sizes: Sizes, runtime: Runtime, directory: Path) -> list[Measurement]:
    found = Measurements(ground, sizes).all_measurements()
    if ground.is_streamed:
        return found
    gives = tuple(BARE + name for name in bare_sqlite.GIVES)
    bare = Measurement("bare loop", gives, partial(_measure_bare, ground, sizes, runtime, directory))
    return [*found, idle_measurement(ground, sizes.idle_seconds), bare]


def _choose_measurements(found: list[Measurement], only: Sequence[str]) -> list[Measurement]:
    """The measurements that give one of these rows; all of them if none is named."""
    known = {name for each in found for name in each.gives}
    if unknown := sorted(set(only) - known):
        raise click.UsageError(f"no such row: {unknown[0]}; there are {', '.join(sorted(known))}")
    return [each for each in found if set(each.gives) & set(only)] if only else found


async def _run(measurements: list[Measurement], ground: Ground, sizes: Sizes) -> dict[str, Any]:
    """Measure one thing after the other; keep the rows that hold."""
    app = ground.make_app()
    async with app.connect() as node:
        settings = {**await node.store.settings(), "worker.concurrency": app.settings.worker.concurrency}
    rows: list[Row] = []
    dropped = 0
    for each in measurements:
        try:
            found = await each.run()
        except (TimeoutError, EndwellError) as error:
            dropped += 1
            write_remark(f"{each.title}: NO FIGURE, {type(error).__name__}: {error}")
            continue
        rows += found
        write_remark(
            f"{each.title}: " + ", ".join(f"{row.value:,.2f} {row.unit} ({row.name})" for row in found)
        )
    rows += compare_backlogs(rows, sizes.backlogs)
    shapes = [msgspec.to_builtins(row) for row in rows]
    return {"machine": describe_machine(), "settings": settings, "rows": shapes, "dropped": dropped}


async def _measure_bare(ground: Ground, sizes: Sizes, runtime: Runtime, directory: Path) -> list[Row]:
    counts = {"one_by_one": sizes.one_by_one, "bulk": sizes.bulk}
    timer = runtime.clock.monotonic
    if ground.store_kind == "sqlite":
        measure = partial(bare_sqlite.measure_rates, directory / "bare.db", timer, **counts)
        found = await runtime.in_thread(measure)
    else:
        found = await bare_postgres.measure_rates(ground.make_app().url, timer, **counts)
    return [Row(BARE + name, ground.store_kind, rate, "tasks/s", n) for name, (rate, n) in found.items()]
