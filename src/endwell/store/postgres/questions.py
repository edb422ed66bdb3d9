"""Questions to PostgreSQL: a few connections, and patience with a server that restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from endwell.runtime.base import Runtime
from endwell.store.postgres import errors
from endwell.store.postgres.read_pool import ReadPool
from endwell.store.postgres.statements import QUERIES

OUTAGE_SECONDS = 5.0
"""How long a question waits for a server that is away."""
_PAUSE_SECONDS = 0.1


class Questions:
    """Runs named queries that change nothing; one that lost its connection is asked again."""

    def __init__(self, url: str, runtime: Runtime, settings: dict[str, str]) -> None:
        self._url = url
        self._runtime = runtime
        self._spare = ReadPool(url, runtime, settings)

    async def open(self) -> None:
        """Be ready; connections are made when they are needed."""
        self._spare.open()

    async def close(self) -> None:
        """Let go of the connections."""
        await self._spare.close()

    async def ask(self, name: str, *parameters: Any) -> Sequence[Any]:
        """The rows of one named query."""
        return await self.ask_sql(QUERIES[name], *parameters)

    async def ask_sql(self, sql: str, *parameters: Any) -> Sequence[Any]:
        """The rows of any query that changes nothing."""
        give_up_at = self._runtime.clock.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                return await self._spare.fetch(sql, parameters)
            except Exception as error:
                if not errors.is_lost(error) or self._runtime.clock.monotonic() > give_up_at:
                    raise errors.meaning_of(error, self._url) from error
            await self._runtime.sleep(_PAUSE_SECONDS * (0.5 + self._runtime.ids.fraction()))
