"""Commands that wait share a transaction, but claims go one by one."""

from __future__ import annotations

import asyncio

from endwell.model import commands as c
from endwell.store.postgres.store import PostgresStore
from tests.store.world import PostgresDatabase, World


async def test_two_claims_at_once_take_different_tasks(
    postgres_database: PostgresDatabase,
) -> None:
    world = World(postgres_database)
    await world.open()
    await world.open_session()
    await world.store.commit([world.submit() for _ in range(8)])
    taken = await asyncio.gather(*(world.claimed(limit=4) for _ in range(2)))
    assert [len(tasks) for tasks in taken] == [4, 4]
    assert len({task.id for tasks in taken for task in tasks}) == 8
    await world.close()


async def test_claims_from_a_stream_use_both_connections_at_once(
    postgres_database: PostgresDatabase,
) -> None:
    """In one transaction the second half would wait for the first."""
    world = World(postgres_database)
    await world.open()
    await world.open_session()
    tasks = [await world.queued_task() for _ in range(8)]
    claims = [world.to(c.Claim, task, session_id="s1", attempt_id=world.new_id()) for task in tasks]
    replies = await asyncio.gather(*(world.store.commit(half) for half in (claims[:4], claims[4:])))
    assert {reply.unwrap().status for some in replies for reply in some} == {"running"}
    assert isinstance(world.store, PostgresStore)
    assert [driver.current is not None for driver in world.store._drivers] == [True, True]
    await world.close()
