"""A follower of the log sees every event, also those that commit late and out of order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.store.world import PostgresDatabase, World

LATE = """
INSERT INTO events (namespace, task_id, version, type, schema, command_id, actor, at, epoch, data, hash)
VALUES ('default', 'late', 1, 'task.created', 1, 'c', '', 1, 0, '{}', '')
RETURNING seq
"""


@pytest.fixture
async def stranger(postgres_database: PostgresDatabase) -> AsyncIterator[Any]:
    """A foreign connection, closed at the end with any open transaction."""
    connection = await asyncpg.connect(postgres_database.url)
    yield connection
    connection.terminate()


async def test_an_event_that_commits_late_with_a_lower_number_is_not_skipped(
    postgres_database: PostgresDatabase, stranger: Any
) -> None:
    world = World(postgres_database)
    await world.open()
    start = await world.store.log_end()
    late = stranger.transaction()
    await late.start()
    (seq,) = await stranger.fetchrow(LATE)

    task = await world.queued_task()
    assert await world.store.events_after("default", start, 10) == []  # not before the older one is settled

    await late.commit()
    seen = await world.store.events_after("default", start, 10)
    assert [logged.event.task_id for logged in seen] == ["late", task.id]
    assert seen[0].cursor == str(seq)
    assert seen[0].seq < seen[1].seq
    await world.close()


async def test_an_older_transaction_that_took_its_number_later_is_not_skipped(
    postgres_database: PostgresDatabase, stranger: Any
) -> None:
    world = World(postgres_database)
    await world.open()
    start = await world.store.log_end()
    older = stranger.transaction()
    await older.start()
    await stranger.execute("SELECT pg_current_xact_id()")
    task = await world.queued_task()
    seen = await world.store.events_after("default", start, 10)
    cursor = seen[-1].cursor if seen else start
    await stranger.fetchrow(LATE)  # a higher seq in an older transaction
    await older.commit()
    seen += await world.store.events_after("default", cursor, 10)
    assert {logged.event.task_id for logged in seen} == {"late", task.id}
    assert len(seen) == 2
    await world.close()


async def test_an_aborted_transaction_does_not_hold_followers_back(
    postgres_database: PostgresDatabase, stranger: Any
) -> None:
    world = World(postgres_database)
    await world.open()
    aborted = stranger.transaction()
    await aborted.start()
    await stranger.fetchrow(LATE)
    task = await world.queued_task()
    await aborted.rollback()
    seen = await world.store.events_after("default", "", 10)
    assert [logged.event.task_id for logged in seen] == [task.id]
    await world.close()
