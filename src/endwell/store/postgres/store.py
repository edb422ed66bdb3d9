"""The store on a PostgreSQL database: commits on two connections, questions on a few others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final

from endwell.errors import StoreError
from endwell.model.commands import Command
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.settings import mask_url
from endwell.store.claim_position import ClaimPosition
from endwell.store.contract import Ring, Snapshot, Store
from endwell.store.group_commit import Batch, CommitQueue, commands_of, fail, replies_of, settle
from endwell.store.log import Logged, position_of
from endwell.store.postgres.committing import ServerClock, SharedState
from endwell.store.postgres.connection import READING, STEADY
from endwell.store.postgres.driver import PostgresDriver
from endwell.store.postgres.questions import Questions
from endwell.store.postgres.snapshot import logged_event, open_snapshot
from endwell.store.postgres.statements import PROBES, QUERIES
from endwell.store.probe import Probe, ProbeResult
from endwell.store.reads.log import LockHolder
from endwell.store.reads.streams import START, QueuePosition, ReadyTurn
from endwell.store.row_cache import RowCache
from endwell.store.rows import Reply

COMMITTERS = 2
"""Committing connections: while the server writes one batch, the next is decided. Measured on two cores, bulk
submits rose from 20,000 to 31,000 a second. The second connects when it is first needed."""

LOCK_SECONDS: Final = 1.0
"""How long a lock must be held to be a finding, however old its transaction is."""
LOCKED_SECONDS: Final = 3.0
"""How long a commit may keep its locks; the others give up waiting after two seconds, and try again."""


class PostgresStore(Store):
    """Group commit under load, one commit of latency when idle; outlives the server's outages.

    Belongs to the event loop that opens it. `shift` is added to the server's clock, in microseconds: tests
    move time with it.
    """

    parallel_commits: ClassVar[int] = COMMITTERS

    def __init__(
        self,
        url: str,
        *,
        limits: Limits,
        runtime: Runtime,
        ring: Ring | None = None,
        shift: Callable[[], int] = lambda: 0,
        committers: int = COMMITTERS,
    ) -> None:
        self._url = url
        self._limits = limits
        self._runtime = runtime
        self._ring = ring
        self._shift = shift
        shared = SharedState(RowCache(), ClaimPosition(runtime.clock), ServerClock(runtime.clock))
        self._drivers = [
            PostgresDriver(url, limits=limits, runtime=runtime, shift=shift, shared=shared)
            for _ in range(committers)
        ]
        self._questions = Questions(url, runtime, READING)
        self._steady = Questions(url, runtime, STEADY)
        self._queue = CommitQueue()
        self._calls: list[asyncio.Event] = []
        self._serving: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        await self._drivers[0].open()
        await self._questions.open()
        await self._steady.open()
        self.mark_open()
        self._calls = [asyncio.Event() for _ in self._drivers]
        self._serving = [
            self._runtime.spawn(self._serve(driver, call), "endwell-postgres-committer")
            for driver, call in zip(self._drivers, self._calls, strict=True)
        ]

    async def close(self) -> None:
        if self.is_open:
            self.mark_closed()
            for call in self._calls:
                call.set()
            await asyncio.wait(self._serving)
            for driver in self._drivers:
                await driver.close()
            await self._questions.close()
            await self._steady.close()

    async def _commit(self, commands: Sequence[Command]) -> list[Reply]:
        self.require_open()
        parts = self._queue.put(commands)
        idle = [call for call in self._calls if not call.is_set()]
        for call in idle[: len(parts)]:  # the first of them, so that little work stays on one connection
            call.set()
        return await replies_of(parts)

    async def _serve(self, driver: PostgresDriver, call: asyncio.Event) -> None:
        """Commit batch after batch on one connection, until the store is closed and nothing waits."""
        while True:
            while batch := self._queue.take():
                await self._commit_batch(driver, batch)
            if not self.is_open:
                return
            call.clear()
            await call.wait()

    async def _commit_batch(self, driver: PostgresDriver, batch: Batch) -> None:
        try:
            outcome = await driver.run(commands_of(batch))
        except Exception as error:
            fail(batch, error)
            return
        if self._ring is not None and outcome.bells:
            self._ring(outcome.bells)
        settle(batch, outcome)

    def for_another_loop(self) -> Store:
        return PostgresStore(
            self._url,
            limits=self._limits,
            runtime=self._runtime,
            ring=self._ring,
            shift=self._shift,
            committers=1,
        )

    async def now(self) -> int:
        return int((await self._rows("clock"))[0][0]) + self._shift()

    async def settings(self) -> dict[str, Any]:
        return {"store": "postgresql", **dict((await self._questions.ask("settings"))[0])}

    async def lock_holders(self) -> list[LockHolder]:
        first = await self._read_lock_holders()
        if not first:
            return []
        await self._runtime.sleep(LOCK_SECONDS)
        still = {holder.transaction for holder in first}
        return [holder for holder in await self._read_lock_holders() if holder.transaction in still]

    async def _read_lock_holders(self) -> list[LockHolder]:
        return [LockHolder(*row) for row in await self._rows("lock_holders", LOCKED_SECONDS)]

    async def probe(self, *asked: Probe) -> ProbeResult:
        self.require_open()
        sql, parameters = PROBES.compose_sql(asked)
        (row,) = await self._steady.ask_sql(sql, self._shift(), *parameters)
        return ProbeResult.from_row(row[0], asked, row[1:])

    async def _rows(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        self.require_open()
        questions = self._steady if name in QUERIES.marked["steady"] else self._questions
        return await questions.ask(name, *parameters)

    async def ready_turns(
        self, namespace: str, agent: str, limit: int, after: QueuePosition = START
    ) -> list[ReadyTurn]:
        rows = await self._rows("ready_turns", namespace, agent, limit, self._shift(), *after)
        return [ReadyTurn(*row) for row in rows]

    async def events_after(self, namespace: str, cursor: str, limit: int) -> list[Logged]:
        after, end = position_of(cursor), position_of(await self.log_end())
        if end <= after:
            return []
        return [logged_event(row) for row in await self._rows("events_after", namespace, after, end, limit)]

    async def log_end(self) -> str:
        ((position,),) = await self._rows("log_end")
        if position is None:
            raise StoreError(
                f"{mask_url(self._url)}: a standby server cannot tell where the log ends",
                code="store_read_only",
                hint="follow the log on the primary server; an export may be taken here",
            )
        return str(position)

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        return open_snapshot(self._url)
