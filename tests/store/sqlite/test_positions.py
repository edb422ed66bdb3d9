"""Positions in the log of a file: one writer at a time draws them, so they are the order of commits."""

from __future__ import annotations

import asyncio

from endwell.operate.record.verify import verify
from tests.store.copies import tail
from tests.store.world import SqliteDatabase, World


async def test_two_writers_and_a_follower_see_one_order_without_gaps(sqlite_database: SqliteDatabase) -> None:
    world = World(sqlite_database)
    await world.open()
    other = await world.another_store()
    await world.open_session(concurrency=1000)
    seen, cursor = list[str](), ""

    async def submit() -> None:
        for _ in range(100):
            await other.commit_one(world.submit())

    async def work() -> None:
        count = 0
        while count < 100:
            for task in await world.claimed(limit=3):
                await world.do(world.finish(task))
                count += 1

    async def look() -> str:
        page = await other.events_after("default", cursor, 5)
        seen.extend(one.event.event_id for one in page)
        return page[-1].cursor if page else cursor

    working = asyncio.gather(submit(), work())
    while not working.done():
        cursor = await look()
        await asyncio.sleep(0)
    await working
    while cursor != (cursor := await look()):
        pass
    assert seen == [event.event_id for event in await tail(world.store)]
    assert (await verify(world.store, ["default"]))["problems"] == []
    numbers = [row[0] for row in await sqlite_database.sql("SELECT seq FROM events ORDER BY seq")]
    assert numbers == list(range(1, len(seen) + 1))
    await world.close()


async def test_a_moved_event_is_found_by_verify(sqlite_database: SqliteDatabase) -> None:
    world = World(sqlite_database)
    await world.open()
    task = await world.running_task()
    await sqlite_database.sql("UPDATE events SET seq = 100000 WHERE version = 2")
    problems = (await verify(world.store, ["default"]))["problems"]
    assert problems == [{"task_id": task.id, "version": 3, "kind": "out_of_order", "about": ""}]
    await world.close()
