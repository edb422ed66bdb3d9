"""The line in front of the committers: who waits together commits together, but takers go one by one."""

from __future__ import annotations

import asyncio

from tests.store.world import PostgresDatabase, World


async def test_two_claims_at_once_do_not_spend_a_batch_on_the_same_tasks(
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
