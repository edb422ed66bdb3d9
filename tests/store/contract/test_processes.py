"""Several processes on one database lose nothing and take nothing twice, also when one is killed."""

from __future__ import annotations

import asyncio

import pytest

from endwell.errors import StoreError
from endwell.store.migrations import all_migrations
from tests.store.processes import PATIENCE, lines_of, start
from tests.store.world import Database, SqliteDatabase, World


@pytest.mark.covers("S2.28")
async def test_processes_that_start_at_once_all_find_the_schema_ready(database: Database) -> None:
    children = [start(database, "migrate") for _ in range(3)]
    assert [await lines_of(child) for child in children] == [["schema 0"]] * 3
    world = World(database)
    await world.open()
    await world.queued_task()
    await world.close()


@pytest.mark.covers("S2.28")
async def test_migrating_again_changes_nothing(database: Database) -> None:
    world = World(database)
    await world.open()
    task = await world.queued_task()
    again = await world.another_store()
    assert await again.task("default", task.id) == task
    await world.close()


async def test_a_newer_schema_is_refused_and_left_alone(database: Database) -> None:
    world = World(database)
    await world.open()
    await world.close()
    is_file = isinstance(database, SqliteDatabase)
    await database.sql("PRAGMA user_version = 99" if is_file else "UPDATE endwell_schema SET version = 99")
    with pytest.raises(StoreError) as caught:
        await database.store().open()
    assert caught.value.code == "schema_too_new"
    ask = "PRAGMA user_version" if is_file else "SELECT version FROM endwell_schema"
    assert [tuple(row) for row in await database.sql(ask)] == [(99,)]


def test_both_databases_have_the_same_migrations() -> None:
    assert [m.number for m in all_migrations("sqlite")] == [m.number for m in all_migrations("postgres")]


async def test_two_processes_that_write_at_once_lose_nothing_and_take_nothing_twice(
    database: Database,
) -> None:
    submitters = [start(database, "submit", "60") for _ in range(2)]
    submitted = [line for child in submitters for line in await lines_of(child)]
    drainers = [start(database, "drain", f"session-{number}") for number in range(2)]
    finished = [line for child in drainers for line in await lines_of(child)]

    world = World(database)
    await world.open()
    assert len(submitted) == 120
    assert sorted(finished) == sorted(submitted)
    assert await world.store.counts_by_status("default") == {"succeeded": 120}
    assert await world.problems() == []
    await world.close()


async def test_a_process_killed_in_the_middle_leaves_a_store_that_can_be_verified(database: Database) -> None:
    child = start(database, "submit-forever")
    told = [await asyncio.to_thread(child.read_line, PATIENCE) for _ in range(150)]
    child.kill()
    await asyncio.to_thread(child.wait, PATIENCE)

    world = World(database)
    await world.open()
    found = {task_id for task_id, _, _ in await world.store.heads_of_tasks("default", "", 100_000)}
    assert set(told) <= found
    assert len(found) % 20 == 0  # whole transactions only
    assert await world.problems() == []
    await world.queued_task()
    await world.close()
    if isinstance(database, SqliteDatabase):
        assert [tuple(row) for row in await database.sql("PRAGMA integrity_check")] == [("ok",)]
