"""Doorbells are rung after the commit, when the work can be found."""

from __future__ import annotations

import apsw

from tests.store.world import SqliteDatabase, World


async def test_a_ring_comes_after_the_commit_it_announces(sqlite_database: SqliteDatabase) -> None:
    """The bell is heard in the middle of `ring`, through another connection: as early as can be."""
    world = World(sqlite_database)
    found: list[int] = []

    def look(topics: set[str]) -> None:
        if any(topic.startswith("work:") for topic in topics):
            found.append(_committed(sqlite_database))

    world.store = sqlite_database.store(world.limits, ring=look)
    await world.open()
    await world.queued_task()
    await world.queued_task()
    await world.close()

    assert found == [1, 2]


def _committed(database: SqliteDatabase) -> int:
    connection = apsw.Connection(str(database.path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return len(connection.execute("SELECT id FROM tasks").fetchall())
    finally:
        connection.close()
