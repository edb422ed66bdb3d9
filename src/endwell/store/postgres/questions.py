"""Questions to PostgreSQL: a small pool of connections, and patience with a server that restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from endwell.runtime.base import Runtime
from endwell.store.postgres import trouble
from endwell.store.postgres.connection import CONNECT_OPTIONS, asyncpg_module, connect
from endwell.store.postgres.statements import QUERIES

MOST_CONNECTIONS = 2
"""Of each kind: for questions that are planned once, and for others."""
IDLE_SECONDS = 60.0
"""How long a connection without questions stays."""
OUTAGE_SECONDS = 5.0
"""How long a question waits for a server that is away."""
CLOSE_SECONDS = 2.0
_PAUSE_SECONDS = 0.1


class Questions:
    """Runs named queries that change nothing; one that lost its connection is asked again."""

    def __init__(self, url: str, runtime: Runtime, settings: dict[str, str]) -> None:
        self._url = url
        self._settings = settings
        self._runtime = runtime
        self._pool: Any = None

    async def open(self) -> None:
        """Be ready; connections are made when they are needed."""
        self._pool = await asyncpg_module().create_pool(
            self._url,
            min_size=0,
            max_size=MOST_CONNECTIONS,
            max_inactive_connection_lifetime=IDLE_SECONDS,
            connect=self._connected,
            reset=_nothing_to_reset,
            **CONNECT_OPTIONS,
        )

    async def _connected(self, url: str, **options: Any) -> Any:
        return await connect(url, self._settings)

    async def close(self) -> None:
        """Let go of the connections."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with self._runtime.timeout(CLOSE_SECONDS):
                await pool.close()
        except Exception:
            pool.terminate()

    async def ask(self, name: str, *parameters: Any) -> Sequence[Any]:
        """The rows of one named query."""
        return await self.ask_sql(QUERIES[name], *parameters)

    async def ask_sql(self, sql: str, *parameters: Any) -> Sequence[Any]:
        """The rows of any query that changes nothing."""
        give_up_at = self._runtime.clock.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                return await self._asked(sql, parameters)
            except Exception as error:
                if not trouble.is_lost(error) or self._runtime.clock.monotonic() > give_up_at:
                    raise trouble.meaning_of(error, self._url) from error
            await self._runtime.sleep(_PAUSE_SECONDS * (0.5 + self._runtime.ids.fraction()))

    async def _asked(self, sql: str, parameters: Sequence[Any]) -> Sequence[Any]:
        async with self._pool.acquire() as connection:
            rows: Sequence[Any] = await connection.fetch(sql, *parameters)
            return rows


async def _nothing_to_reset(connection: Any) -> None:
    """Questions leave nothing behind, so the usual round trip to clear up is saved."""
