"""The store on one SQLite file: commits in one writer thread, long questions in one reader thread.

Short questions are answered where they are asked: readers never wait for a writer, and handing one to
another thread and back takes several times as long as the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from endwell.model.commands import Command, Heartbeat
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.store.contract import BATCH_LIMIT, Ring, Store
from endwell.store.log import Event, Logged
from endwell.store.rows import Reply
from endwell.store.sqlite.connection import BUSY_SECONDS, explained
from endwell.store.sqlite.driver import SqliteDriver
from endwell.store.sqlite.lanes import Lane, Letter

_Commit = Letter[Sequence[Command], list[Reply]]
_Question = Letter[Callable[[SqliteDriver], Any], Any]


# one or a few index seeks each, whatever the number of tasks
SHORT_QUESTIONS: Final = frozenset(
    ("task_by_id", "task_by_key", "card", "agent", "session", "key_holder", "priorities", "next_start")
)


class SqliteStore(Store):
    """Safe with several processes on one file; group commit under load, one commit of latency when idle."""

    def __init__(self, path: Path, *, limits: Limits, runtime: Runtime, ring: Ring | None = None) -> None:
        self._path = path
        self._limits = limits
        self._runtime = runtime
        self._ring = ring
        self._writer: SqliteDriver | None = None
        self._reader: SqliteDriver | None = None
        self._here: SqliteDriver | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._commits: Lane[Sequence[Command], list[Reply]]
        self._questions: Lane[Callable[[SqliteDriver], Any], Any]

    async def open(self) -> None:
        self._writer = await self._runtime.in_thread(self._connect)
        self._reader = await self._runtime.in_thread(self._connect)
        self._here = await self._runtime.in_thread(self._connect)
        self._here.never_wait()
        self._home = asyncio.get_running_loop()
        self._commits = Lane(
            self._runtime,
            "endwell-sqlite-writer",
            self._serve_commits,
            limit=BATCH_LIMIT,
            closing=self._writer.close,
        )
        self._questions = Lane(
            self._runtime,
            "endwell-sqlite-reader",
            self._serve_questions,
            limit=64,
            closing=self._reader.close,
        )

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
            await self._commits.close(self._runtime)
            await self._questions.close(self._runtime)
            self._driver(self._here).close()
            self._writer = self._reader = self._here = None

    async def commit(self, commands: Sequence[Command]) -> list[Reply]:
        if len(commands) <= BATCH_LIMIT:
            urgent = len(commands) == 1 and isinstance(commands[0], Heartbeat)
            return await self._commits.post(commands, size=len(commands), urgent=urgent)
        parts = [commands[i : i + BATCH_LIMIT] for i in range(0, len(commands), BATCH_LIMIT)]
        posted = [self._commits.post(part, size=len(part)) for part in parts]
        return [reply for answer in posted for reply in await answer]

    def _serve_commits(self, letters: Sequence[_Commit]) -> None:
        commands = [command for letter in letters for command in letter.ask]
        try:
            outcome = self._driver(self._writer).run(commands)
        except Exception as error:
            for letter in letters:
                letter.error = error
            return
        start = 0
        for letter in letters:
            letter.answer = outcome.replies[start : start + len(letter.ask)]
            start += len(letter.ask)
        if self._ring is not None and outcome.bells:
            self._ring(outcome.bells)

    def _serve_questions(self, letters: Sequence[_Question]) -> None:
        for letter in letters:
            try:
                with explained(self._path):
                    letter.answer = letter.ask(self._driver(self._reader))
            except Exception as error:
                letter.error = error

    @staticmethod
    def _driver(driver: SqliteDriver | None) -> SqliteDriver:
        if driver is None:
            raise RuntimeError("the store is not open")
        return driver

    def sibling(self) -> Store:
        return self  # the writer thread serves every event loop, heartbeats first

    async def now(self) -> int:
        return self._runtime.clock.now_us()

    async def settings(self) -> dict[str, Any]:
        read: dict[str, Any] = await self._questions.post(lambda driver: driver.settings())
        return read

    async def _rows(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        rows: Sequence[Sequence[Any]] = await self._asked(
            lambda driver: driver.rows(name, parameters), is_short=name in SHORT_QUESTIONS
        )
        return rows

    async def _asked(self, ask: Callable[[SqliteDriver], Any], *, is_short: bool) -> Any:
        if is_short and asyncio.get_running_loop() is self._home:
            self._questions.refuse_if_nobody_serves()
            await self._runtime.sleep(0)  # whoever asks in a tight loop must not keep others from running
            try:
                return ask(self._driver(self._here))
            except apsw.Error:
                pass  # recovery after a crash holds readers up for a moment: the thread may wait, we may not
        return await self._questions.post(ask)

    async def tasks_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Task]:
        found: list[Task] = await self._asked(
            lambda driver: driver.tasks_by_ids(namespace, ids), is_short=len(ids) <= FEW
        )
        return found

    async def events_after(self, namespace: str, cursor: str, limit: int) -> list[Logged]:
        rows = await self._rows("events_after", namespace, cursor or "0", limit)
        return [Logged(str(row[0]), row[1], Event(*row[2:-1]), row[-1] or b"") for row in rows]

    async def log_end(self) -> str:
        return str((await self._rows("log_end"))[0][0])


BUSY_PAUSE_SECONDS = 0.001
FEW = 20
"""So many tasks are a short question."""
