"""An effect store in a PostgreSQL database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from endwell.errors import EndwellError, StoreError
from endwell.settings import mask_url
from endwell.store.effect_store import EffectStore
from endwell.store.postgres import errors
from endwell.store.postgres.connection import asyncpg_module, borrow, make_pool

MOST_CONNECTIONS = 4

_CREATE = """CREATE TABLE IF NOT EXISTS endwell_effect_results
    (key text COLLATE "C" PRIMARY KEY, content bytea NOT NULL, attempt_id text NOT NULL)"""
_GET = "SELECT content FROM endwell_effect_results WHERE key = $1"
_PUT = "INSERT INTO endwell_effect_results VALUES ($1, $2, $3) ON CONFLICT (key) DO NOTHING"


class PostgresEffectStore(EffectStore):
    """One table, made when it is first needed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, key: str) -> bytes | None:
        found: bytes | None = await self._run(lambda connection: connection.fetchval(_GET, key))
        return found

    async def put(self, key: str, content: bytes, attempt_id: str) -> None:
        await self._run(lambda connection: connection.execute(_PUT, key, content, attempt_id))

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and self._loop is asyncio.get_running_loop():
            await pool.close()

    async def _run(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """Use a connection of this event loop; replace a lost one, since both statements may be repeated."""
        tries = 0
        while True:
            try:
                if self._pool is None or self._loop is not asyncio.get_running_loop():
                    await self._open()
                async with borrow(self._pool) as connection:
                    return await ask(connection)
            except EndwellError:
                raise
            except Exception as error:
                tries += 1
                if tries > MOST_CONNECTIONS or not errors.is_lost(error):
                    what = type(error).__name__
                    raise StoreError(
                        f"the effect store {mask_url(self._url)} cannot be used: {what}"
                    ) from error

    async def _open(self) -> None:
        pool = await make_pool(self._url, {}, size=MOST_CONNECTIONS)
        with contextlib.suppress(asyncpg_module().UniqueViolationError):  # another process has just made it
            await pool.execute(_CREATE)
        self._pool, self._loop = pool, asyncio.get_running_loop()
