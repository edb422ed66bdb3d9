"""Questions about the order of the log, the same on every database."""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from endwell.store.log import Logged, position_of
from endwell.store.stream_reads import StreamReads


class LogHolder(msgspec.Struct, frozen=True):
    """An open transaction that keeps committed events from followers of the log."""

    pid: int | None
    application: str
    seconds: int | None
    database: str
    prepared_as: str | None


class LockHolder(LogHolder, frozen=True):
    """An open transaction that keeps others from writing to these tables, or to some of their rows."""

    tables: str
    transaction: str

    @property
    def hides_life(self) -> bool:
        """Whether heartbeats and ticks may be unable to be written."""
        return "sessions" in self.tables.split(", ")


class Positions(StreamReads):
    """Reads the log by position. A later event of a task has a higher position than an earlier one."""

    @abstractmethod
    async def events_after(self, namespace: str, cursor: str, limit: int) -> list[Logged]:
        """The log after a cursor ('' is the beginning). Nothing that commits later is skipped."""

    @abstractmethod
    async def log_end(self) -> str:
        """The cursor of a follower that wants only what comes from now on."""

    async def last_position(self) -> int:
        """The highest position used so far. A cursor above it comes from another history of the store."""
        return int((await self._rows("last_position"))[0][0])

    async def oldest_after(self, namespace: str, cursor: str) -> int | None:
        """When the first committed event after a cursor took place; `events_after` may hold it back."""
        rows = await self._rows("oldest_after", namespace, position_of(cursor))
        return rows[0][0] if rows else None

    async def events_out_of_order(self, namespace: str, first: str, last: str) -> list[tuple[str, int]]:
        """Events (task, version) of a run of tasks that the log has before the previous one of their task."""
        rows = await self._rows("events_out_of_order", namespace, first, last)
        return [(row[0], row[1]) for row in rows]

    async def positions_of_task(self, namespace: str, task_id: str) -> dict[int, int]:
        """The position of each event of a task, by its version."""
        return dict(await self._rows("positions_of_task", namespace, task_id))  # type: ignore[arg-type]

    async def log_holders(self, seconds: float) -> list[LogHolder]:
        """Transactions that wrote events and have been open for so long: followers wait for them."""
        return [LogHolder(*row) for row in await self._rows("log_holders", seconds)]

    async def lock_holders(self) -> list[LockHolder]:
        """Transactions that have kept what writers need locked for longer than any commit takes."""
        return []  # of a file, `settings` names the process
