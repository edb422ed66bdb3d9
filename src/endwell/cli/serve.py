"""`endwell worker`, `pmo` and `up`: processes that run until a signal stops them.

The first SIGTERM or SIGINT drains: no new claims, finish or hand back, exit 0. The second ends at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from endwell.app import Endwell, Node
from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.failures import INTERRUPTED
from endwell.cli.base.loading import open_installation, required_app
from endwell.cli.base.logs import log_services
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import write, write_json, write_remark
from endwell.pmo.service import Pmo
from endwell.runtime.base import Runtime
from endwell.runtime.loops import new_loop
from endwell.runtime.processes import process_id
from endwell.runtime.signals import on_stop_signals
from endwell.store.sqlite.connection import count_no_memory
from endwell.worker.worker import Worker

Part = Worker | Pmo
_CONCURRENCY = click.IntRange(1, 1_000_000)
YOUNG_OBJECTS = 20_000
"""New objects between two garbage collections; a batch of turns makes several thousand."""


@click.command(cls=EndwellCommand)
@click.option("--agents", metavar="A,B", help="Serve only these agents of the app.")
@click.option("--concurrency", type=_CONCURRENCY, help="Tasks at once; default: worker.concurrency.")
@click.option("--name", help="This worker's name; default: host and process id.")
@pass_options
def worker(options: Options, agents: str | None, concurrency: int | None, name: str | None) -> None:
    """Execute tasks until stopped.

    \b
      endwell worker --app hello:app --agents clerk,coder --concurrency 20
    """
    app = required_app(options)
    served = _agent_names(app, agents)
    _serve(options, app, lambda node: [node.worker(name=name, concurrency=concurrency, agents=served)])


@click.command(cls=EndwellCommand)
@click.option("--name", help="This PMO's name; default: host and process id.")
@pass_options
def pmo(options: Options, name: str | None) -> None:
    """Run a PMO (supervisor) until stopped: fire clocks, reclaim, dispatch.

    Needs no app, only the store. Any number of them may run.

    \b
      endwell pmo --store sqlite:///hello.db
    """
    _serve(options, open_installation(options), lambda node: [node.pmo(name=name)])


@click.command(cls=EndwellCommand)
@click.option("--agents", metavar="A,B", help="Serve only these agents of the app.")
@click.option("--concurrency", type=_CONCURRENCY, help="Tasks at once; default: worker.concurrency.")
@pass_options
def up(options: Options, agents: str | None, concurrency: int | None) -> None:
    """Run a worker and a PMO in one process.

    \b
      endwell up --app hello:app
    """
    app = required_app(options)
    served = _agent_names(app, agents)
    _serve(options, app, lambda node: [node.worker(concurrency=concurrency, agents=served), node.pmo()])


def _agent_names(app: Endwell, agents: str | None) -> list[str]:
    """The agents of the option; refused before anything is opened if the app does not have them."""
    names = [name.strip() for name in agents.split(",")] if agents else []
    app.served_agents(names)
    return names


def _serve(options: Options, app: Endwell, make: Callable[[Node], Sequence[Part]]) -> None:
    log_services()
    _tune_process()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_until_stopped(options, app, make))


def _tune_process() -> None:
    """Spare garbage collections and SQLite's memory statistics: together 4 % of a drain."""
    gc.set_threshold(YOUNG_OBJECTS)
    count_no_memory()


async def _until_stopped(options: Options, app: Endwell, make: Callable[[Node], Sequence[Part]]) -> None:
    stop = asyncio.Event()
    restore = on_stop_signals(asyncio.get_running_loop(), lambda count: _on_signal(count, stop))
    try:
        async with app.connect() as node:
            parts = make(node)
            for part in parts:
                await part.start()
            _announce_ready(options, parts)
            await _run(app.runtime, parts, stop)
            for part in parts:
                await part.close()
    finally:
        restore()


def _on_signal(count: int, stop: asyncio.Event) -> None:
    if count > 1:
        os._exit(INTERRUPTED)
    write_remark("stopping: finishing what runs; a second signal ends at once")
    stop.set()


async def _run(runtime: Runtime, parts: Sequence[Part], stop: asyncio.Event) -> None:
    """Run until the signal, or until a part fails; then all parts drain."""
    runs: list[asyncio.Task[Any]] = [runtime.spawn(part.run(), f"endwell-{part.name}") for part in parts]
    stopping = runtime.spawn(stop.wait(), "endwell-stop")
    await asyncio.wait([*runs, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for part in parts:
        part.stop()
    for run in runs:
        await run


def _announce_ready(options: Options, parts: Sequence[Part]) -> None:
    """Print that the process is ready: JSON to a program (a pipe, or --json), text to a person."""
    first = parts[0]
    if options.json or not sys.stdout.isatty():
        write_json({"event": "ready", "id": first.session_id, "pid": process_id()}, is_line=True)
    else:
        what = " and ".join("worker" if isinstance(part, Worker) else "PMO" for part in parts)
        write(f"{what} {first.name} ready (id {first.session_id}, pid {process_id()})")
