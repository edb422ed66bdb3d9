"""Two processes that start at once: the second waits for the first and finds everything done."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from endwell.store.postgres.connection import MIGRATION_LOCK, migrate


@pytest.mark.covers("S2.28")
async def test_whoever_waited_for_the_migration_sees_that_it_took_place(postgres_url: str) -> None:
    first, second = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    try:
        transaction = first.transaction()
        await transaction.start()
        await first.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        waiting = asyncio.ensure_future(migrate(second))
        blocked = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not await first.fetchval(blocked):
            assert not waiting.done()
        version = await migrate(first)
        await transaction.commit()
        assert await waiting == version
    finally:
        await first.close()
        await second.close()
