"""The store on one SQLite file.

Commits are made at a desk, by whoever asks first. Short questions are answered where they are asked:
readers never wait for a writer, and handing one to another thread and back takes several times as long
as the answer. Long questions have a thread of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import apsw

from endwell.model.card import Card
from endwell.model.commands import Command
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.store.contract import BATCH_LIMIT, Ring, Store
from endwell.store.log import Event, Logged, position_of
from endwell.store.probe import Probe, ProbeResult, Stamp
from endwell.store.rows import Reply
from endwell.store.sqlite.connection import BUSY_SECONDS, explained
from endwell.store.sqlite.driver import SqliteDriver
from endwell.store.sqlite.reader import Reader
from endwell.store.sqlite.writer import Writer
from endwell.store.stream_reads import START, QueuePosition, ReadyTurn

# one or a few index seeks each, whatever the number of tasks
SHORT_QUESTIONS: Final = frozenset(
    (
        "task_by_id",
        "task_by_key",
        "card",
        "agent",
        "epochs_of_queued",
        "session",
        "key_holder",
        "priorities",
        "ready_agents",
        "serving",
        "long_ready",
        "next_start",
        "next_start_of_some",
        "next_wait",
        "offered_to_some",
        "ready_for_some",
        "effect",
        "pending_messages",
        "approval",
        "last_tick",
        "cursor",
        "tallies",
    )
)

WRITE_LOCK_BYTE: Final = 120
"""Where SQLite locks the file of shared memory for the one connection that writes to the log."""
LOCK_LOOKS: Final = 20
LOCK_SECONDS: Final = 1.0
"""For how long, and in how many looks, the same process must hold the write lock to be called stuck."""


class SqliteStore(Store):
    """Safe with several processes on one file; group commit under load, one commit of latency when idle."""

    has_stamps: ClassVar[bool] = True

    def __init__(self, path: Path, *, limits: Limits, runtime: Runtime, ring: Ring | None = None) -> None:
        self._path = path
        self._log_path = path.with_name(f"{path.name}-wal")
        self._limits = limits
        self._runtime = runtime
        self._ring = ring
        self._writer: SqliteDriver | None = None
        self._reader: SqliteDriver | None = None
        self._here: SqliteDriver | None = None
        self._here_lock = runtime.new_lock()
        self._desk: Writer
        self._questions: Reader

    async def open(self) -> None:
        self._writer = await self._runtime.in_thread(self._connect)
        self._reader = await self._runtime.in_thread(self._connect)
        self._here = await self._runtime.in_thread(self._connect)
        self._here.never_wait()
        self._here_lock = self._runtime.new_lock()
        self._desk = Writer(self._runtime, self._writer, self._ring)
        self._questions = Reader(self._runtime, "endwell-sqlite-reader", closing=self._reader.close)

    def _connect(self) -> SqliteDriver:
        now = self._runtime.clock.now_us
        return SqliteDriver(self._path, limits=self._limits, now=now, pause=self._pause)

    def _pause(self, count: int) -> bool:
        """A short, jittered wait: SQLite's own grows to 100 ms, which starves whoever writes little."""
        if count * BUSY_PAUSE_SECONDS > BUSY_SECONDS:
            return False
        self._runtime.block(BUSY_PAUSE_SECONDS * (0.5 + self._runtime.ids.fraction()))
        return True

    async def close(self) -> None:
        if self._writer is not None:
            await self._desk.close()
            await self._questions.close()
            with self._here_lock:
                self._driver(self._here).close()
            self._writer = self._reader = self._here = None

    async def _commit(self, commands: Sequence[Command]) -> list[Reply]:
        if len(commands) <= BATCH_LIMIT:
            return await self._desk.ask(commands)
        parts = [commands[i : i + BATCH_LIMIT] for i in range(0, len(commands), BATCH_LIMIT)]
        return [reply for replies in await self._desk.ask_in_parts(parts) for reply in replies]

    @staticmethod
    def _driver(driver: SqliteDriver | None) -> SqliteDriver:
        if driver is None:
            raise RuntimeError("the store is not open")
        return driver

    def sibling(self) -> Store:
        return self  # the desk serves every event loop, heartbeats first

    async def now(self) -> int:
        return self._runtime.clock.now_us()

    async def settings(self) -> dict[str, Any]:
        read: dict[str, Any] = await self._asked(lambda driver: driver.settings(), is_short=False)
        return {**read, "blocked_by": await self._blocked_by()}

    async def _blocked_by(self) -> int | None:
        """The process that holds the write lock for longer than any commit takes, if there is one."""
        memory = self._path.with_name(f"{self._path.name}-shm")
        holder = self._runtime.lock_holder(memory, WRITE_LOCK_BYTE)
        for _ in range(LOCK_LOOKS):
            if holder is None:
                break
            await self._runtime.sleep(LOCK_SECONDS / LOCK_LOOKS)
            if self._runtime.lock_holder(memory, WRITE_LOCK_BYTE) != holder:
                return None
        return holder

    async def glance(self, *asked: Probe) -> ProbeResult:
        now = self._runtime.clock.now_us()
        is_short = all(ask.name in SHORT_QUESTIONS for ask in asked)
        stamp = self.stamp()
        row = await self._asked(lambda driver: driver.glance(now, asked), is_short=is_short)
        return ProbeResult.of(now, asked, row[1:], stamp)

    def stamp(self) -> Stamp | None:
        """The reading connection's data version, which changes with every commit of another connection."""
        if not self._here_lock.acquire(False):
            return None
        try:
            return None if self._here is None else self._here.data_version()
        finally:
            self._here_lock.release()

    async def _rows(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        rows: Sequence[Sequence[Any]] = await self._asked(
            lambda driver: driver.rows(name, parameters), is_short=name in SHORT_QUESTIONS
        )
        return rows

    async def _asked(self, ask: Callable[[SqliteDriver], Any], *, is_short: bool) -> Any:
        if is_short:
            self._questions.refuse_if_nobody_serves()
            await self._runtime.sleep(0)  # a caller that asks in a loop must not keep others from running
            if self._here_lock.acquire(False):
                try:
                    return ask(self._driver(self._here))
                except apsw.Error:
                    pass  # recovery after a crash holds readers up for a moment; the thread may wait
                finally:
                    self._here_lock.release()
        return await self._questions.ask(lambda: self._answer(ask))

    def _answer(self, ask: Callable[[SqliteDriver], Any]) -> Any:
        with explained(self._path):
            return ask(self._driver(self._reader))

    async def tasks_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Task]:
        found: list[Task] = await self._asked(
            lambda driver: driver.tasks_by_ids(namespace, ids), is_short=len(ids) <= FEW
        )
        return found

    async def ready_turns(
        self, namespace: str, agent: str, limit: int, after: QueuePosition = START
    ) -> list[ReadyTurn]:
        found: list[ReadyTurn] = await self._asked(
            lambda driver: driver.ready_turns(namespace, agent, limit, after), is_short=True
        )
        return found

    async def epochs_of_queued(self, namespace: str, ids: Sequence[str]) -> dict[str, int]:
        rows = await self._rows("epochs_of_queued", namespace, json.dumps(list(ids)))
        return {row[0]: row[1] for row in rows}

    async def results_by_ids(self, namespace: str, ids: Sequence[str]) -> list[tuple[Task, bytes | None]]:
        found: list[tuple[Task, bytes | None]] = await self._asked(
            lambda driver: driver.results_by_ids(namespace, ids), is_short=len(ids) <= FEW
        )
        return found

    async def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]:
        found: list[Card] = await self._asked(
            lambda driver: driver.cards_by_ids(namespace, ids), is_short=len(ids) <= FEW
        )
        return found

    async def events_after(self, namespace: str, cursor: str, limit: int) -> list[Logged]:
        rows = await self._rows("events_after", namespace, position_of(cursor), limit)
        return [Logged(str(row[0]), row[1], Event(*row[2:-1]), row[-1] or b"") for row in rows]

    async def log_end(self) -> str:
        return str((await self._rows("log_end"))[0][0])


BUSY_PAUSE_SECONDS = 0.001
FEW = 20
"""So many tasks are a short question."""
