"""A database of an earlier release keeps its data; one of several starting processes migrates it."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from endwell.policy.limits import Limits
from endwell.runtime import Runtime
from endwell.store.migrations import all_migrations
from endwell.store.postgres import driver
from endwell.store.postgres.connection import MIGRATION_LOCK, migrate
from endwell.store.postgres.store import PostgresStore
from tests.store.world import PostgresDatabase, World

_KEPT = ("tasks", "events", "cards", "sessions", "agents")


@pytest.mark.covers("S2.28")
async def test_a_process_that_waited_for_a_migration_sees_its_result(postgres_url: str) -> None:
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


@pytest.mark.covers("S2.28")
async def test_a_database_of_the_second_schema_keeps_its_tasks_log_and_counters(postgres_url: str) -> None:
    world = World(PostgresDatabase(postgres_url))
    await world.open()
    ended = await world.running_task()
    await world.do(world.finish(ended))
    waiting = await world.queued_task()
    turns = await world.store.turns_of_task("default", ended.id)
    await world.close()
    await _made_older(postgres_url, 2)

    world = World(PostgresDatabase(postgres_url))
    await world.open()
    try:
        assert await world.problems() == []
        found = await world.task(ended)
        assert (found.status, found.dispatch_count) == ("succeeded", 1)
        assert await world.store.turns_of_task("default", ended.id) == turns
        again = await world.claim(waiting)
        assert again.dispatch_count == 1
        await world.do(world.finish(again))
        assert await world.problems() == []
    finally:
        await world.close()


async def _made_older(url: str, schema: int) -> None:
    """The same rows in tables as the release of that schema has left them."""
    connection = await asyncpg.connect(url)
    await connection.execute("ALTER SCHEMA public RENAME TO later; CREATE SCHEMA public")
    for step in all_migrations("postgres")[:schema]:
        await connection.execute(step.sql)
    columns = (
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = $1 AND table_name = $2 AND is_identity = 'NO'"
    )
    for table in _KEPT:
        later, old = [[r[0] for r in await connection.fetch(columns, s, table)] for s in ("later", "public")]
        names = ", ".join(name for name in old if name in later)
        await connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM later.{table}")
    await connection.execute("CREATE TABLE endwell_schema (version int NOT NULL)")
    await connection.execute("INSERT INTO endwell_schema VALUES ($1)", schema)
    await connection.execute("DROP SCHEMA later CASCADE")
    await connection.close()


async def test_a_migration_may_take_longer_than_a_server_may_be_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "OUTAGE_SECONDS", 1.0)
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
        assert await store.counts_by_status("default") == {}
        await store.close()
    finally:
        await other.close()
