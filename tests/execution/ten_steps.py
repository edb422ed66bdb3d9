"""A worker process that carries out one long task and is killed or frozen at a commit of the test's choice.

`python -m tests.execution.ten_steps {...}`. The task has ten recorded steps, two of them effects, and waits
for a tool, another agent, a person and a timer. Every call of a function leaves a line in the sink file.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from endwell import NOT_DONE, Context, Done, Endwell
from endwell.runtime.processes import PIPE, Child, start
from endwell.store.postgres.driver import PostgresDriver
from endwell.store.rows import Outcome, Writes
from endwell.store.sqlite.driver import SqliteDriver

ROOT = Path(__file__).parents[2]
STEPS = tuple(f"step-{number}" for number in range(1, 9))
EFFECTS = ("pay", "ship")


class Sink:
    """The outside world: it only remembers what was done to it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, name: str, key: str = "") -> None:
        line = f"{name} {key}\n".encode()
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)

    def calls(self) -> list[str]:
        return [line.split(" ")[0] for line in self._lines()]

    def has(self, name: str, key: str) -> bool:
        return f"{name} {key}" in self._lines()

    def _lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


def app_for(url: str, namespace: str, settings: dict[str, object], sink: Sink) -> Endwell:
    app = Endwell(url, namespace=namespace, settings=settings)

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
        return await ctx.effect(name, act, name, key=key, reconcile=find, timeout=0.5)

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
            sys.stdout.write("struck\n")
            sys.stdout.flush()
            # to this very thread: sent to the process, it may go on for a while and begin another commit
            signal.pthread_kill(threading.get_ident(), self.signal)


def set_trap(trap: Trap) -> None:
    """Around the drivers' own functions: the commit itself is the real one."""
    write, run = SqliteDriver._write, SqliteDriver.run
    final = PostgresDriver._final

    def sqlite_write(self: SqliteDriver, writes: Writes) -> None:
        trap.arrives(writes)
        write(self, writes)

    def sqlite_run(self: SqliteDriver, commands: Any, **options: Any) -> Outcome:
        outcome = run(self, commands, **options)
        trap.is_done(outcome)
        return outcome

    async def postgres_final(self: PostgresDriver, outcome: Outcome, sql: str, parameters: Any = ()) -> None:
        trap.arrives(outcome.writes)
        await final(self, outcome, sql, parameters)
        trap.is_done(outcome)

    SqliteDriver._write = sqlite_write  # type: ignore[method-assign]
    SqliteDriver.run = sqlite_run  # type: ignore[method-assign]
    PostgresDriver._final = postgres_final  # type: ignore[method-assign]


def started(about: dict[str, Any]) -> Child:
    """Such a process; it prints `ready`, then `struck` just before it is killed or frozen."""
    argv = [sys.executable, "-m", __name__, json.dumps(about)]
    return start(argv, cwd=ROOT, env=dict(os.environ), stdout=PIPE)


async def main(about: dict[str, Any]) -> None:
    sink = Sink(Path(about["sink"]))
    app = app_for(about["url"], about["namespace"], about["settings"], sink)
    async with app.connect() as node:
        worker = node.worker(concurrency=4)
        await worker.start()
        if about.get("at"):
            set_trap(Trap(about["at"], about["where"], about["how"]))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
