"""`endwell worker`, `pmo` and `up`: processes that work until they are told to stop.

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
from endwell.cli.base.failures import INTERRUPTED
from endwell.cli.base.loading import installation, required_app
from endwell.cli.base.logs import say_more
from endwell.cli.base.options import EndwellCommand, Options, pass_asked
from endwell.cli.base.output import say, write, write_json
from endwell.errors import UsageError
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
"""So many are made before Python looks for garbage among them; a batch of turns makes several thousand."""


@click.command(cls=EndwellCommand)
@click.option("--agents", metavar="A,B", help="Serve only these agents of the app.")
@click.option("--concurrency", type=_CONCURRENCY, help="Most tasks at once; worker.concurrency unless said.")
@click.option("--name", help="What this worker is called; host and process id unless said.")
@pass_asked
def worker(asked: Options, agents: str | None, concurrency: int | None, name: str | None) -> None:
    """Execute tasks until stopped.

    \b
      endwell worker --app hello:app --agents clerk,coder --concurrency 20
    """
    app = required_app(asked)
    served = _served(app, agents)
    _serve(asked, app, lambda node: [node.worker(name=name, concurrency=concurrency, agents=served)])


@click.command(cls=EndwellCommand)
@click.option("--name", help="What this PMO is called; host and process id unless said.")
@pass_asked
def pmo(asked: Options, name: str | None) -> None:
    """Supervise until stopped: fire clocks, reclaim, dispatch.

    Needs no app, only the store. Any number of them may run.

    \b
      endwell pmo --store sqlite:///hello.db
    """
    _serve(asked, installation(asked), lambda node: [node.pmo(name=name)])


@click.command(cls=EndwellCommand)
@click.option("--agents", metavar="A,B", help="Serve only these agents of the app.")
@click.option("--concurrency", type=_CONCURRENCY, help="Most tasks at once; worker.concurrency unless said.")
@pass_asked
def up(asked: Options, agents: str | None, concurrency: int | None) -> None:
    """A worker and a PMO in one process.

    \b
      endwell up --app hello:app
    """
    app = required_app(asked)
    served = _served(app, agents)
    _serve(asked, app, lambda node: [node.worker(concurrency=concurrency, agents=served), node.pmo()])


def _served(app: Endwell, agents: str | None) -> list[str]:
    names = [name.strip() for name in agents.split(",")] if agents else []
    unknown = [name for name in names if name not in app.agents]
    if unknown:
        known = ", ".join(app.agents) or "none"
        raise UsageError(
            f"the app has no agent named {unknown[0]!r}", hint=f"it has: {known}", field="agents"
        )
    return names


def _serve(asked: Options, app: Endwell, make: Callable[[Node], Sequence[Part]]) -> None:
    say_more()
    _settle_in()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_until_stopped(asked, app, make))


def _settle_in() -> None:
    """This process is ours, and serves for long: together 4 % of what a drain takes."""
    gc.set_threshold(YOUNG_OBJECTS)
    count_no_memory()


async def _until_stopped(asked: Options, app: Endwell, make: Callable[[Node], Sequence[Part]]) -> None:
    stop = asyncio.Event()
    restore = on_stop_signals(asyncio.get_running_loop(), lambda count: _asked_to_stop(count, stop))
    try:
        async with app.connect() as node:
            parts = make(node)
            for part in parts:
                await part.start()
            _announce(asked, parts)
            await _run(app.runtime, parts, stop)
            for part in parts:
                await part.close()
    finally:
        restore()


def _asked_to_stop(count: int, stop: asyncio.Event) -> None:
    if count > 1:
        os._exit(INTERRUPTED)
    say("stopping: finishing what runs; a second signal ends at once")
    stop.set()


async def _run(runtime: Runtime, parts: Sequence[Part], stop: asyncio.Event) -> None:
    """Until the signal, or until a part fails; then all of them drain."""
    runs: list[asyncio.Task[Any]] = [runtime.spawn(part.run(), f"endwell-{part.name}") for part in parts]
    asked = runtime.spawn(stop.wait(), "endwell-stop")
    await asyncio.wait([*runs, asked], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    for part in parts:
        part.stop()
    for run in runs:
        await run


def _announce(asked: Options, parts: Sequence[Part]) -> None:
    """Said once it can work: JSON to a program, which reads a pipe or says so; words to a person."""
    first = parts[0]
    if asked.json or not sys.stdout.isatty():
        write_json({"event": "ready", "id": first.session_id, "pid": process_id()}, is_line=True)
    else:
        what = " and ".join("worker" if isinstance(part, Worker) else "PMO" for part in parts)
        write(f"{what} {first.name} ready (id {first.session_id}, pid {process_id()})")
