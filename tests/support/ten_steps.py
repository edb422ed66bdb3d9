"""A worker process that carries out one long task and is killed or frozen at a commit of the test's choice.

The task has ten recorded steps, two of them effects, and waits for a tool, another agent, a person and a
timer. Every call of a function leaves a line in the sink file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from endwell import NOT_DONE, Context, Done, Endwell
from endwell.runtime import Runtime, SystemClock
from endwell.runtime.child_process import ChildProcess
from endwell.store.postgres.committing import CommittingConnection
from endwell.store.rows import Outcome, Writes
from endwell.store.sqlite.driver import SqliteDriver
from tests.nursery import born

STEPS = tuple(f"step-{number}" for number in range(1, 9))
EFFECTS = ("pay", "ship")


class Sink:
    """The outside world: it only remembers what was done to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, name: str, key: str = "") -> None:
        line = f"{name} {key}\n".encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)

    def calls(self) -> list[str]:
        return [line.split(" ")[0] for line in self._lines()]

    def has(self, name: str, key: str) -> bool:
        return f"{name} {key}" in self._lines()

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


class ShiftedClock(SystemClock):
    """The clock of a machine that has the wrong time."""

    def __init__(self, seconds: float) -> None:
        self._shift_us = int(seconds * 1_000_000)

    def now_us(self) -> int:
        return super().now_us() + self._shift_us


def app_for(
    url: str, namespace: str, settings: dict[str, object], sink: Sink, shift_seconds: float = 0.0
) -> Endwell:
    runtime = Runtime.system(clock=ShiftedClock(shift_seconds)) if shift_seconds else None
    app = Endwell(url, namespace=namespace, settings=settings, runtime=runtime)

    def work(name: str) -> str:
        sink.note(name)
        return f"{name} is done"

    def act(name: str, idempotency_key: str) -> str:
        sink.note(name, idempotency_key)
        return f"{name} is done"

    def find(key: str, name: str) -> Any:
        return Done(f"{name} is done") if sink.has(name, key) else NOT_DONE

    async def once(ctx: Context, name: str) -> Any:
        key = f"{name}:{ctx.task_id}"
        return await ctx.effect(name, act, name, key=key, reconcile=find, timeout=1.2)

    @app.agent("helper")
    async def helper(number: int) -> int:
        sink.note("helper")
        return number + 1

    @app.agent("long", retries=3)
    async def long(ctx: Context) -> list[Any]:
        told: list[Any] = [await ctx.step(name, work, name) for name in STEPS[:4]]
        told.append(await once(ctx, "pay"))
        told.append(await ctx.tool("oracle", {"question": 42}, timeout=60))
        told.append(await ctx.call("helper", 1))
        await ctx.approve("Ship it?", show=told[4], within=60)
        await ctx.sleep(0.05)
        told += [await ctx.step(name, work, name) for name in STEPS[4:]]
        told.append(await once(ctx, "ship"))
        return told

    return app


EXPECTED = [
    *(f"{name} is done" for name in STEPS[:4]),
    "pay is done",
    "it is 42",
    2,
    *(f"{name} is done" for name in STEPS[4:]),
    "ship is done",
]


class Trap:
    """Counts the commits that write events, and strikes before or after the chosen one."""

    def __init__(self, at: int, where: str, how: str) -> None:
        self.at = at
        self.where = where
        self.signal = signal.SIGKILL if how == "kill" else signal.SIGSTOP
        self.count = 0

    def arrives(self, writes: Writes) -> None:
        if writes.events:
            self.count += 1
            self._strike("before")

    def is_done(self, outcome: Outcome) -> None:
        if outcome.writes.events:
            self._strike("after")

    def _strike(self, where: str) -> None:
        if self.count == self.at and self.where == where:
            self.at = -1
            say("struck")
            # to this very thread: sent to the process, it may go on for a while and begin another commit
            signal.pthread_kill(threading.get_ident(), self.signal)


def set_trap(trap: Trap) -> None:
    """Around the drivers' own functions: the commit itself is the real one."""
    write, run = SqliteDriver._write, SqliteDriver.run
    finish = CommittingConnection._finish

    def sqlite_write(self: SqliteDriver, writes: Writes) -> None:
        trap.arrives(writes)
        write(self, writes)

    def sqlite_run(self: SqliteDriver, commands: Any, **options: Any) -> Outcome:
        outcome = run(self, commands, **options)
        trap.is_done(outcome)
        return outcome

    async def postgres_finish(
        self: CommittingConnection, outcome: Outcome, sql: str, parameters: Any = ()
    ) -> None:
        trap.arrives(outcome.writes)
        await finish(self, outcome, sql, parameters)
        trap.is_done(outcome)

    SqliteDriver._write = sqlite_write  # type: ignore[method-assign]
    SqliteDriver.run = sqlite_run  # type: ignore[method-assign]
    CommittingConnection._finish = postgres_finish  # type: ignore[method-assign]


def started(about: dict[str, Any]) -> ChildProcess:
    """Such a process; it prints `ready`, then `struck` just before it is killed or frozen."""
    return born(__name__, about)


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class Complaints(logging.Handler):
    """Says once that the store could not be written."""

    def emit(self, record: logging.LogRecord) -> None:
        if "store failed" in record.getMessage() or "full" in record.getMessage():
            say("full")
            logging.getLogger("endwell").removeHandler(self)


async def fill_disk(size: int, seconds: float) -> None:
    """For a while nothing is written beyond that place in a file. Python ignores the signal for it."""
    logging.getLogger("endwell").addHandler(Complaints())
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    await asyncio.sleep(seconds)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


async def main(about: dict[str, Any]) -> None:
    """`waits`: for a signal before it begins. `file_bytes`: so large may files become, for `full_seconds`."""
    sink = Sink(Path(about["sink"]))
    shift = about.get("shift_seconds", 0.0)
    app = app_for(about["url"], about["namespace"], about["settings"], sink, shift)
    async with app.connect() as node:
        worker = node.worker(concurrency=4)
        await worker.start()
        begin = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, begin.set)
        if about.get("at"):
            set_trap(Trap(about["at"], about["where"], about["how"]))
        say("ready")
        if about.get("waits"):
            await begin.wait()
        if "file_bytes" in about:
            full = asyncio.ensure_future(fill_disk(about["file_bytes"], about["full_seconds"]))
            full.add_done_callback(lambda _: None)
        await worker.run()
