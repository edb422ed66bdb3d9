"""Questions about the log. A later event of a task has a higher position than an earlier one."""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from endwell.store.log import Event, Logged, TurnRecord, position_of, turns_in
from endwell.store.queries import NamedQueries


class LogHolder(msgspec.Struct, frozen=True):
    """An open transaction that keeps committed events from followers of the log."""

    pid: int | None
    application: str
    seconds: int | None
    database: str
    prepared_as: str | None


class LockHolder(LogHolder, frozen=True):
    """An open transaction that keeps other processes from writing to these tables, or to some rows."""

    tables: str
    transaction: str

    @property
    def hides_life(self) -> bool:
        """Whether heartbeats and ticks may be unable to be written."""
        return "sessions" in self.tables.split(", ")


class LogReads(NamedQueries):
    """The log by position, for followers, and by task."""

    @abstractmethod
    async def events_after(self, namespace: str, cursor: str, limit: int) -> list[Logged]:
        """The log after a cursor ('' is the beginning). Nothing that commits later is skipped."""

    @abstractmethod
    async def log_end(self) -> str:
        """The cursor of a follower that wants only later events."""

    async def next_page(self, namespace: str, cursor: str, size: int) -> list[Logged]:
        """The events after a cursor; a command whose events do not all fit is left for the next page."""
        page = await self.events_after(namespace, cursor, size)
        if len(page) < size:
            return page
        end, last = size, page[-1].event.command_id
        while end and page[end - 1].event.command_id == last:
            end -= 1
        return page[:end] or await self.events_after(namespace, cursor, 100 * size)

    async def last_position(self) -> int:
        """The highest position used so far. A cursor above it comes from another history of the store."""
        return int(await self._read_value("last_position"))

    async def oldest_after(self, namespace: str, cursor: str) -> int | None:
        """When the first committed event after a cursor took place; `events_after` may hold it back."""
        return await self._read_first(int, "oldest_after", namespace, position_of(cursor))

    async def log_holders(self, seconds: float) -> list[LogHolder]:
        """Transactions that wrote events and have been open for longer: followers wait for them."""
        return await self._read_all(LogHolder, "log_holders", seconds)

    async def lock_holders(self) -> list[LockHolder]:
        """Transactions that have locked what writers need for longer than any commit takes."""
        return []  # where the database is a file, `settings` names the process

    async def events_of_task(self, namespace: str, task_id: str) -> list[Event]:
        """The whole log of one task."""
        return await self._read_all(Event, "events_of_task", namespace, task_id)

    async def turns_of_task(self, namespace: str, task_id: str) -> list[TurnRecord]:
        """The turns of a task that have ended."""
        return turns_in(await self.events_of_task(namespace, task_id))

    async def events_between(self, namespace: str, first: str, last: str) -> list[Event]:
        """The log of the tasks from one id to another, task by task."""
        return await self._read_all(Event, "events_between", namespace, first, last)

    async def events_out_of_order(self, namespace: str, first: str, last: str) -> list[tuple[str, int]]:
        """Events (task, version) that the log has before the previous one of their task, between two ids."""
        rows = await self._rows("events_out_of_order", namespace, first, last)
        return [(row[0], row[1]) for row in rows]

    async def positions_of_task(self, namespace: str, task_id: str) -> dict[int, int]:
        """The position of each event of a task, by its version."""
        return await self._read_pairs("positions_of_task", namespace, task_id)

    async def event_tasks(self, namespace: str, after: str, limit: int) -> list[str]:
        """The ids of the tasks that the log knows, in pages."""
        return await self._read_column("event_tasks", namespace, after, limit)

    async def heads_of_tasks(self, namespace: str, after: str, limit: int) -> list[tuple[str, int, bytes]]:
        """The id of each task, and the version and hash of its last event as its row has them."""
        rows = await self._rows("heads", namespace, after, limit)
        return [(str(row[0]), int(row[1]), bytes(row[2])) for row in rows]
