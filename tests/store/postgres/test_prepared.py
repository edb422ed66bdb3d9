"""Prepared transactions have no process, survive a restart, and hold followers back like other writers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from endwell.operate.doctor.storage import log_held_back
from tests.servers.postgres import PostgresServer
from tests.store.copies import WRITTEN, exported, tail
from tests.store.world import PostgresDatabase, World


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that allows prepared transactions."""
    server = PostgresServer()
    server.start()
    asyncio.run(_allow_prepared(server))
    server.restart()
    yield server
    server.stop()


async def _allow_prepared(server: PostgresServer) -> None:
    connection = await asyncpg.connect(server.url("postgres"))
    await connection.execute("ALTER SYSTEM SET max_prepared_transactions = 10")
    await connection.close()


async def test_a_prepared_writer_of_events_is_named_and_holds_followers_back(server: PostgresServer) -> None:
    url = server.create_database()
    world = World(PostgresDatabase(url))
    await world.open()
    start = await world.store.log_end()
    stranger = await asyncpg.connect(url)
    for name, statement in (("it's late", WRITTEN), ("elsewhere", "SELECT pg_current_xact_id(), $1::text")):
        await stranger.execute("BEGIN")
        await stranger.execute(statement, "late")
        await stranger.execute("PREPARE TRANSACTION '" + name.replace("'", "''") + "'")
    await stranger.close()
    task = await world.queued_task()

    assert await tail(world.store, start) == []
    assert any(task.id.encode() in line for line in await exported(world.store))
    assert await world.store.log_holders(3600) == []
    (holder,) = await world.store.log_holders(0)
    assert (holder.pid, holder.prepared_as) == (None, "it's late")
    assert holder.seconds is not None
    finding = log_held_back(holder)
    assert "the prepared transaction it's late" in finding.message
    await asyncio.to_thread(server.restart)
    assert [one.prepared_as for one in await world.store.log_holders(0)] == ["it's late"]
    connection = await asyncpg.connect(url)
    await connection.execute(finding.remedy.partition(" or ")[2])
    await connection.execute("ROLLBACK PREPARED 'elsewhere'")
    await connection.close()
    assert await world.store.log_holders(0) == []
    assert [event.task_id for event in await tail(world.store, start)][:1] == [task.id]
    await world.close()
