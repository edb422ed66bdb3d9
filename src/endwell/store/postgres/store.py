"""The store on a PostgreSQL database: commits on two connections, questions on a few others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, ClassVar, Final

from endwell.errors import StoreError, UsageError
from endwell.model.card import Card
from endwell.model.commands import Command, Heartbeat
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.runtime.processes import process_id
from endwell.settings import masked
from endwell.store.carrying import START, Place, ReadyTurn
from endwell.store.contract import BATCH_LIMIT, Ring, Snapshot, Store
from endwell.store.glance import Ask, Seen
from endwell.store.held import Held
from endwell.store.log import Logged, position_of
from endwell.store.positions import LockHolder
from endwell.store.postgres.committer import Committer
from endwell.store.postgres.connection import READING, STEADY
from endwell.store.postgres.driver import ServerClock
from endwell.store.postgres.line import Line
from endwell.store.postgres.questions import Questions
from endwell.store.postgres.reached import Reached
from endwell.store.postgres.snapshot import logged, open_snapshot
from endwell.store.postgres.statements import JOINER
from endwell.store.rows import LITTLE_BYTES, Outcome, Reply

COMMITTERS = 2
"""Committing connections: while the server writes one batch, the next is decided. Measured on two cores, bulk
submits rose from 20,000 to 31,000 a second. The second connects when it is first needed."""

LOCK_SECONDS: Final = 1.0
LOCKED_SECONDS: Final = 3.0
"""How long a commit may keep its locks; the others give up waiting after two seconds, and try again."""

STEADY_QUESTIONS: Final = frozenset(
    (
        "agent",
        "card",
        "cards_between",
        "cards_by_ids",
        "cards_page",
        "clock",
        "epochs_of_queued",
        "load_of_sessions",
        "log_end",
        "offered_counts",
        "offers_standing",
        "open_sessions",
        "ready_agents",
        "ready_turns",
        "results_by_ids",
        "serving",
        "session",
        "task_by_id",
        "tasks_by_ids",
    )
)
"""Questions that are asked all the time, and go by an index whatever is asked and however much there is."""


class PostgresStore(Store):
    """Group commit under load, one commit of latency when idle; outlives the server's outages.

    Belongs to the event loop that opens it; `sibling()` serves another. `shift` is added to the server's
    clock, in microseconds: tests move time with it.
    """

    lines: ClassVar[int] = COMMITTERS

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
        shared: dict[str, Any] = {
            "held": Held(),
            "reached": Reached(runtime.clock),
            "server": ServerClock(runtime.clock),
        }
        self._committers = [
            Committer(url, limits=limits, runtime=runtime, shift=shift, **shared) for _ in range(committers)
        ]
        self._questions = Questions(url, runtime, READING)
        self._steady = Questions(url, runtime, STEADY)
        self._line: Line | None = None
        self._pid = 0

    async def open(self) -> None:
        await self._committers[0].open()
        await self._questions.open()
        await self._steady.open()
        self._pid = process_id()
        self._line = Line([partial(self._run, each) for each in self._committers], limit=BATCH_LIMIT)
        self._line.open(self._runtime)

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()
            for committer in self._committers:
                await committer.close()
            await self._questions.close()
            await self._steady.close()

    async def _commit(self, commands: Sequence[Command]) -> list[Reply]:
        line = self._opened()
        urgent = len(commands) == 1 and isinstance(commands[0], Heartbeat)
        parts = [commands[i : i + BATCH_LIMIT] for i in range(0, len(commands), BATCH_LIMIT)]
        posted = [line.post(part, urgent=urgent) for part in parts]
        if len(posted) > 1:
            await asyncio.wait(posted)  # so that none is left behind when one fails
        return [reply for answer in posted for reply in await answer]

    async def _run(self, committer: Committer, commands: Sequence[Command]) -> Outcome:
        outcome = await committer.run(commands)
        if self._ring is not None and outcome.bells:
            self._ring(outcome.bells)
        return outcome

    def _opened(self) -> Line:
        if self._line is None:
            raise UsageError("the store is not open")
        if process_id() != self._pid:
            raise UsageError(
                "this store was opened before the process forked",
                hint="make a new Endwell object in the child process",
            )
        return self._line

    def sibling(self) -> Store:
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
        """Looks twice: what is locked only for a moment is no finding, however old its transaction is."""
        first = await self._locked()
        if not first:
            return []
        await self._runtime.sleep(LOCK_SECONDS)
        still = {holder.transaction for holder in first}
        return [holder for holder in await self._locked() if holder.transaction in still]

    async def _locked(self) -> list[LockHolder]:
        return [LockHolder(*row) for row in await self._rows("lock_holders", LOCKED_SECONDS)]

    async def glance(self, *asked: Ask) -> Seen:
        self._opened()
        sql, parameters = JOINER.statement(asked)
        (row,) = await self._steady.ask_sql(sql, self._shift(), *parameters)
        return Seen.of(row[0], asked, row[1:])

    async def _rows(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        self._opened()
        questions = self._steady if name in STEADY_QUESTIONS else self._questions
        return await questions.ask(name, *parameters)

    async def tasks_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Task]:
        return [Task(*row) for row in await self._rows("tasks_by_ids", namespace, list(ids))]

    async def results_by_ids(self, namespace: str, ids: Sequence[str]) -> list[tuple[Task, bytes | None]]:
        rows = await self._rows("results_by_ids", namespace, list(ids), LITTLE_BYTES)
        return [(Task(*row[:-1]), row[-1]) for row in rows]

    async def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]:
        return [Card(*row) for row in await self._rows("cards_by_ids", namespace, list(ids))]

    async def ready_turns(
        self, namespace: str, agent: str, limit: int, after: Place = START
    ) -> list[ReadyTurn]:
        rows = await self._rows("ready_turns", namespace, agent, limit, self._shift(), *after)
        return [ReadyTurn(*row) for row in rows]

    async def epochs_of_queued(self, namespace: str, ids: Sequence[str]) -> dict[str, int]:
        return dict(await self._rows("epochs_of_queued", namespace, list(ids)))  # type: ignore[arg-type]

    async def events_after(self, namespace: str, cursor: str, limit: int) -> list[Logged]:
        after, end = position_of(cursor), position_of(await self.log_end())
        if end <= after:
            return []
        return [logged(row) for row in await self._rows("events_after", namespace, after, end, limit)]

    async def log_end(self) -> str:
        ((position,),) = await self._rows("log_end")
        if position is None:
            raise StoreError(
                f"{masked(self._url)}: a standby server cannot tell where the log ends",
                code="store_read_only",
                hint="follow the log on the primary server; an export may be taken here",
            )
        return str(position)

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        return open_snapshot(self._url)
