"""Two processes that start at once: the second waits for the first and finds everything done."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from endwell.policy.limits import Limits
from endwell.runtime import Runtime
from endwell.store.postgres import committer
from endwell.store.postgres.connection import MIGRATION_LOCK, migrate
from endwell.store.postgres.store import PostgresStore


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


async def test_a_migration_may_take_longer_than_a_server_may_be_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "OUTAGE_SECONDS", 1.0)
    other = await asyncpg.connect(postgres_url)
    store = PostgresStore(postgres_url, limits=Limits(), runtime=Runtime.system())
    try:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        opening = asyncio.ensure_future(store.open())
        waited = """SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                    AND waitstart < clock_timestamp() - interval '1.2 s'"""
        while not opening.done() and not await other.fetchval(waited):
            pass  # asking lets the others run
        await transaction.commit()
        await opening
        assert await store.counts("default") == {}
        await store.close()
    finally:
        await other.close()
