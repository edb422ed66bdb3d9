"""A store that moves to another server, or comes from an earlier release, has one log for all readers."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from endwell.store.log import Event
from endwell.store.migrations import all_migrations
from tests.servers.postgres import PostgresServer
from tests.store.copies import check_copies, relayed, tail
from tests.store.world import PostgresDatabase, World

TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
LAST_SCHEMA_BY_TRANSACTION = 6
"""The last schema in which the position of an event was the number of its transaction."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """Two servers, the first far ahead of the second in transaction numbers, both fit for logical copies."""
    old, new = PostgresServer(), PostgresServer()
    for server in (old, new):
        server.start()
    asyncio.run(_prepare(old, new))
    for server in (old, new):
        server.restart()
    yield old, new
    for server in (old, new):
        server.stop()


async def _prepare(old: PostgresServer, new: PostgresServer) -> None:
    for server in (old, new):
        connection = await asyncpg.connect(server.url("postgres"))
        await connection.execute("ALTER SYSTEM SET wal_level = logical")
        if server is old:
            for _ in range(2000):
                await connection.execute("SELECT pg_current_xact_id()")
        await connection.close()


async def history(url: str) -> World:
    """A store with tasks in several states, and a relay that has sent a part."""
    world = World(PostgresDatabase(url))
    await world.open()
    for _ in range(3):
        await world.do(world.finish(await world.running_task()))
    await relayed(world.store)
    await world.do(world.fail(await world.running_task()))
    await world.suspended_task("look")
    await world.queued_task()
    return world


async def check_moved(url: str, before: list[Event], unsent: list[str], tmp_path: Path, spare: str) -> None:
    """The moved store has the whole log, sends what was not sent, and continues."""
    world = World(PostgresDatabase(url))
    await world.open()
    await check_copies(world, before, tmp_path / "copy.db", spare)
    assert await relayed(world.store) == unsent
    task = await world.do(world.finish(await world.running_task()))
    assert [event.event_id for event in (await tail(world.store))[len(before) :]] == [
        f"{task.id}.{version}" for version in range(1, 6)
    ]
    sent = await relayed(world.store)
    assert sent
    assert all(each.startswith(f"{task.id}.") for each in sent)
    await world.close()


async def unsent_by(url: str, server: PostgresServer) -> list[str]:
    """What the relay of a store would send next, tried on a copy within its server."""
    name = url.rpartition("/")[2]
    copy = f"{name}_sent"
    connection = await asyncpg.connect(server.url("postgres"))
    await connection.execute(f"CREATE DATABASE {copy} TEMPLATE {name}")
    await connection.close()
    world = World(PostgresDatabase(server.url(copy)))
    await world.open()
    ids = await relayed(world.store)
    await world.close()
    return ids


async def test_a_dumped_store_continues_on_a_server_with_lower_transaction_numbers(
    servers: tuple[PostgresServer, PostgresServer], tmp_path: Path
) -> None:
    old, new = servers
    source, target = old.create_database(), new.create_database()
    world = await history(source)
    before = await tail(world.store)
    await world.close()
    await asyncio.to_thread(dump_and_restore, old, source, new, target)
    assert await _transaction(source) > await _transaction(target) + 1000
    await check_moved(target, before, await unsent_by(source, old), tmp_path, new.create_database())


def dump_and_restore(old: PostgresServer, source: str, new: PostgresServer, target: str) -> None:
    dump = [str(old._bin / "pg_dump"), "-Fc", "--no-sync", source]
    done = subprocess.run(dump, check=True, stdout=subprocess.PIPE)
    subprocess.run([new._bin / "pg_restore", "-d", target], check=True, input=done.stdout)


async def _transaction(url: str) -> int:
    connection = await asyncpg.connect(url)
    number = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
    await connection.close()
    return int(number)


async def test_a_copy_of_the_tables_without_their_sequence_continues_the_log(
    servers: tuple[PostgresServer, PostgresServer], tmp_path: Path
) -> None:
    old, new = servers
    source, target = old.create_database(), new.create_database()
    world = await history(source)
    before = await tail(world.store)
    await world.close()
    await _make_schema(target)
    reading, writing = await asyncpg.connect(source), await asyncpg.connect(target)
    for (table,) in await reading.fetch(TABLES):
        file = tmp_path / table
        await reading.copy_from_table(table, output=file, format="binary")
        await writing.execute(f"DELETE FROM {table}")
        await writing.copy_to_table(table, source=file, format="binary")
    await reading.close()
    await writing.close()
    await check_moved(target, before, await unsent_by(source, old), tmp_path, new.create_database())


async def test_a_store_copied_by_logical_replication_continues_the_log(
    servers: tuple[PostgresServer, PostgresServer], tmp_path: Path
) -> None:
    old, new = servers
    source, target = old.create_database(), new.create_database()
    world = await history(source)
    await _make_schema(target)
    there, here = await asyncpg.connect(target), await asyncpg.connect(source)
    await there.execute("DELETE FROM endwell_schema")
    await here.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    await there.execute(f"CREATE SUBSCRIPTION copy CONNECTION '{source}' PUBLICATION everything")
    await _until(there, "SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel")
    await world.queued_task()  # one more, which the subscription itself carries over
    before = await tail(world.store)
    await world.close()
    await _until(there, f"SELECT count(*) = {len(before)} FROM events")
    await there.execute("DROP SUBSCRIPTION copy")
    await there.close()
    await here.close()
    await check_moved(target, before, await unsent_by(source, old), tmp_path, new.create_database())


async def _until(connection: Any, question: str) -> None:
    while not await connection.fetchval(question):
        pass  # asking lets the others run


async def _make_schema(url: str) -> None:
    world = World(PostgresDatabase(url))
    await world.open()
    await world.close()


async def make_older(url: str) -> None:
    """Put the rows into the tables of the release in which transaction numbers were positions."""
    connection = await asyncpg.connect(url)
    await connection.execute("ALTER SCHEMA public RENAME TO later; CREATE SCHEMA public")
    for step in all_migrations("postgres"):
        if step.number <= LAST_SCHEMA_BY_TRANSACTION:
            await connection.execute(step.sql)
    columns = "SELECT column_name FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2"
    for (table,) in await connection.fetch(TABLES):
        both = [{row[0] for row in await connection.fetch(columns, s, table)} for s in ("later", "public")]
        names = ", ".join(sorted(both[0] & both[1]))
        await connection.execute(
            f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM later.{table}"
        )
    await connection.execute("CREATE TABLE endwell_schema (version int NOT NULL)")
    await connection.execute("INSERT INTO endwell_schema VALUES ($1)", LAST_SCHEMA_BY_TRANSACTION)
    last = "SELECT setval('events_seq_seq', max(seq)) FROM events"
    await connection.execute(f"{last}; DROP SCHEMA later CASCADE")
    await connection.close()


async def older_history(postgres_url: str, *changes: str) -> tuple[list[Event], list[str]]:
    """A store of the earlier release, changed by statements; its events, and what its relay has left."""
    world = await history(postgres_url)
    before = await tail(world.store)
    everything = World(PostgresDatabase(postgres_url))
    await everything.open()
    position = (await everything.store.cursor("default", "relay")).position  # type: ignore[union-attr]
    unsent = [event.event_id for event in await tail(world.store, position)]
    await everything.close()
    await world.close()
    await make_older(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    for change in changes:
        await connection.execute(change.replace("{position}", position))
    await connection.close()
    return before, unsent


async def test_an_upgraded_store_sends_what_its_relay_had_not_sent(
    postgres_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    """Some events had a lower transaction number than an earlier event of their task."""
    before, unsent = await older_history(
        postgres_url,
        "UPDATE events SET tx = 1000 + seq * 10",
        "UPDATE events SET tx = tx - 15 WHERE version = 2",
        "UPDATE cursors SET position = 1000 + {position} * 10 || '.{position}'",
    )
    world = World(PostgresDatabase(postgres_url))
    await world.open()
    await check_copies(world, before, tmp_path / "copy.db", postgres_server.create_database())
    position = (await world.store.cursor("default", "relay")).position  # type: ignore[union-attr]
    left = [event.event_id for event in await tail(world.store, position)]
    assert left[-len(unsent) :] == unsent, "nothing is left out"
    assert len(left) <= len(unsent) + 1, "and next to nothing is sent twice"
    await world.close()


async def test_an_upgraded_store_that_was_restored_with_lower_numbers_sends_what_was_stuck(
    postgres_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    """The earlier release never showed events with transaction numbers below those of the first server."""
    before, unsent = await older_history(
        postgres_url,
        "UPDATE events SET tx = CASE WHEN seq <= {position} THEN 5000000 ELSE 700 END + seq",
        "UPDATE cursors SET position = (5000000 + {position}) || '.{position}'",
    )
    world = World(PostgresDatabase(postgres_url))
    await world.open()
    position = (await world.store.cursor("default", "relay")).position  # type: ignore[union-attr]
    assert [event.event_id for event in await tail(world.store, position)] == unsent
    await check_copies(world, before, tmp_path / "copy.db", postgres_server.create_database())
    await world.close()


async def test_an_upgraded_store_whose_positions_repeat_is_numbered_again(
    postgres_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    """A logical copy under the earlier release began its sequence at 1 again."""
    before, unsent = await older_history(
        postgres_url,
        "ALTER TABLE events ALTER seq SET GENERATED BY DEFAULT",
        "UPDATE events SET tx = 5000000 + seq WHERE seq <= {position}",
        "UPDATE events SET tx = 700 + seq, seq = seq - {position} WHERE seq > {position}",
        "UPDATE cursors SET position = (5000000 + {position}) || '.{position}',"
        " updated_at = (SELECT max(at) FROM events WHERE tx > 5000000)",
    )
    world = World(PostgresDatabase(postgres_url))
    await world.open()
    now = await tail(world.store)
    assert sorted(map(repr, now)) == sorted(map(repr, before))
    await check_copies(world, now, tmp_path / "copy.db", postgres_server.create_database())
    position = (await world.store.cursor("default", "relay")).position  # type: ignore[union-attr]
    left = [event.event_id for event in await tail(world.store, position)]
    assert sorted(left) == sorted(unsent)
    await world.close()


async def test_an_upgraded_store_whose_commands_overlap_has_the_events_of_each_together(
    postgres_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    """Each event drew its position by itself, so the end of a turn and the end of its task could be apart."""
    swap = "UPDATE events SET seq = CASE seq WHEN {0} THEN {1} ELSE {0} END + 1000000 WHERE seq IN ({0}, {1})"
    world = await history(postgres_url)
    before = await tail(world.store)
    ends = [n for n, event in enumerate(before, 1) if event.type == "task.succeeded"]
    await world.close()
    await make_older(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    numbers = [row[0] for row in await connection.fetch("SELECT seq FROM events ORDER BY seq")]
    await connection.execute("ALTER TABLE events ALTER seq SET GENERATED BY DEFAULT")
    for end in ends:
        await connection.execute(swap.format(numbers[end - 1], numbers[end]))
    await connection.execute("UPDATE events SET seq = seq - 1000000 WHERE seq > 1000000")
    await connection.execute("UPDATE cursors SET position = $1", f"1.{numbers[ends[-1] - 1]}")
    await connection.execute("UPDATE events SET tx = 1")
    await connection.close()

    world = World(PostgresDatabase(postgres_url))
    await world.open()
    assert await tail(world.store) == before
    position = (await world.store.cursor("default", "relay")).position  # type: ignore[union-attr]
    left = [event.event_id for event in await tail(world.store, position)]
    assert [event.event_id for event in before[ends[-1] :]] == left[-len(before) + ends[-1] :]
    assert len(left) <= len(before) - ends[-1] + 2
    await check_copies(world, before, tmp_path / "copy.db", postgres_server.create_database())
    await world.close()
