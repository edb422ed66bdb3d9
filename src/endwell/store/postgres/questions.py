"""Questions to PostgreSQL: a small connection pool, and patience with a server that restarts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from endwell.runtime.base import Runtime
from endwell.store.postgres import errors
from endwell.store.postgres.connection import borrow, make_pool
from endwell.store.postgres.statements import QUERIES

MOST_CONNECTIONS = 2
"""Most connections of one kind: for questions that are planned once, and for others."""
OUTAGE_SECONDS = 5.0
"""How long a question waits for a server that is away."""
CLOSE_SECONDS = 2.0
"""How long questions under way may take when the store is closed."""
_PAUSE_SECONDS = 0.1


class Questions:
    """Runs queries that change nothing; a query that lost its connection is sent again."""

    def __init__(self, url: str, runtime: Runtime, settings: dict[str, str]) -> None:
        self._url = url
        self._runtime = runtime
        self._settings = settings

    async def open(self) -> None:
        """Open the pool; its connections are made when they are needed."""
        self._pool = await make_pool(self._url, self._settings, size=MOST_CONNECTIONS)

    async def close(self) -> None:
        """Close the connections, those of questions under way after a moment."""
        with suppress(TimeoutError):
            async with self._runtime.timeout(CLOSE_SECONDS):
                await self._pool.close()

    async def ask(self, name: str, *parameters: Any) -> Sequence[Any]:
        """Return the rows of one named query."""
        return await self.ask_sql(QUERIES[name], *parameters)

    async def ask_sql(self, sql: str, *parameters: Any) -> Sequence[Any]:
        """Return the rows of any query."""
        give_up_at = self._runtime.clock.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                async with borrow(self._pool) as connection:
                    rows: Sequence[Any] = await connection.fetch(sql, *parameters)
                return rows
            except Exception as error:
                if not errors.is_lost(error) or self._runtime.clock.monotonic() > give_up_at:
                    raise errors.meaning_of(error, self._url) from error
            await self._runtime.sleep(_PAUSE_SECONDS * (0.5 + self._runtime.ids.fraction()))
