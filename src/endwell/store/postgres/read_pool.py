"""A few connections of one kind: taken for one question, given back, closed when nobody asks for long.

asyncpg's own pool does that too, and takes 0.1 ms for each question, 0.25 after some milliseconds of rest;
two questions are on the way of an idle turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from endwell.errors import UsageError
from endwell.runtime.base import Runtime
from endwell.store.postgres import errors
from endwell.store.postgres.connection import connect

MOST_CONNECTIONS = 2
"""Of each kind: for questions that are planned once, and for others."""
IDLE_SECONDS = 60.0
"""How long a connection without questions stays."""
CLOSE_SECONDS = 2.0


class ReadPool:
    """`fetch` waits for a free connection, or makes one while there are few."""

    def __init__(self, url: str, runtime: Runtime, settings: dict[str, str]) -> None:
        self._url = url
        self._runtime = runtime
        self._settings = settings
        self._idle: list[tuple[Any, float]] = []
        self._is_open = False
        self._tidying: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Be ready, on the running event loop."""
        self._gate = asyncio.Semaphore(MOST_CONNECTIONS)
        self._is_open = True

    async def close(self) -> None:
        """Let go of the connections; what is still being asked loses its own when it is done."""
        self._is_open = False
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.wait([self._tidying])
            self._tidying = None
        await self._let_go(len(self._idle))

    async def fetch(self, sql: str, parameters: Sequence[Any]) -> Sequence[Any]:
        """The rows of a query."""
        if not self._is_open:
            raise UsageError("the store is not open")
        async with self._gate:
            connection = await self._taken()
            try:
                rows: Sequence[Any] = await connection.fetch(sql, *parameters)
            except BaseException as error:
                is_fit = hasattr(error, "sqlstate") and not errors.is_lost(error)  # the server only said no
                self._give_back(connection, is_fit=is_fit)
                raise
            self._give_back(connection, is_fit=True)
            return rows

    async def _taken(self) -> Any:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self._url, self._settings)

    def _give_back(self, connection: Any, *, is_fit: bool) -> None:
        if not is_fit or not self._is_open:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append((connection, self._runtime.clock.monotonic()))
            if self._tidying is None or self._tidying.done():
                self._tidying = self._runtime.spawn(self._tidy(), "endwell-postgres-tidy")

    async def _tidy(self) -> None:
        """The last that was given back is the first to be taken, so the first of the row rest longest."""
        while self._idle:
            await self._runtime.sleep(IDLE_SECONDS)
            before = self._runtime.clock.monotonic() - IDLE_SECONDS
            await self._let_go(sum(since <= before for _, since in self._idle))

    async def _let_go(self, count: int) -> None:
        some, self._idle = self._idle[:count], self._idle[count:]
        for connection, _ in some:
            try:
                await connection.close(timeout=CLOSE_SECONDS)
            except Exception:
                connection.terminate()
