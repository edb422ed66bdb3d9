"""An orderly restart of the server: a FATAL message on an idle connection means a lost connection."""

from __future__ import annotations

import struct
from typing import Any

import asyncpg
import pytest

from endwell.store.postgres import errors
from endwell.store.postgres.effect_store import PostgresEffectStore
from tests.store.world import PostgresDatabase, World

FIELDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
SHUTDOWN = b"E" + struct.pack("!i", len(FIELDS) + 4) + FIELDS
"""What a server that shuts down sends on every idle connection before it closes it."""


def shut_down(connection: Any) -> None:
    """The message is here, and the end of the connection is not yet."""
    connection._protocol.data_received(SHUTDOWN)


async def test_asyncpg_s_answer_after_a_shutdown_message_is_a_lost_connection(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    shut_down(connection)
    assert not connection.is_closed()
    with pytest.raises(asyncpg.InternalClientError) as raised:
        await connection.fetchval("SELECT 1")
    assert errors.is_lost(raised.value)
    assert errors.meaning_of(raised.value, postgres_url).code == "store_unreachable"
    connection.terminate()


async def test_commits_and_questions_after_a_shutdown_message_are_tried_again(postgres_url: str) -> None:
    world = World(PostgresDatabase(postgres_url))
    await world.open()
    store: Any = world.store
    (first,) = await store.commit([world.submit()])
    await store.task("default", first.unwrap().id)
    connections = [each.current.connection for each in store._drivers if each.current is not None]
    holders = [*store._questions._pool._holders, *store._steady._pool._holders]
    connections += [holder._con for holder in holders if holder._con is not None]
    assert len(connections) >= 2
    for connection in connections:
        shut_down(connection)
    (second,) = await store.commit([world.submit()])
    found = await store.task("default", second.unwrap().id)
    assert found.status == "queued"
    assert await world.problems() == []
    await world.close()


async def test_an_effect_store_survives_a_shutdown_message(postgres_url: str) -> None:
    effects: Any = PostgresEffectStore(postgres_url)
    await effects.put("k", b"1", "a")
    for holder in effects._pool._holders:
        if holder._con is not None:
            shut_down(holder._con)
    assert await effects.get("k") == b"1"
    await effects.close()
