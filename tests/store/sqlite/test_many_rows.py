"""A batch of many tasks is a few statements, and they stay prepared."""

from __future__ import annotations

from endwell.store.sqlite.bulk import GROUP
from endwell.store.sqlite.driver import _MOVE_TASK
from tests.store.sqlite.test_log_file import driver_of
from tests.store.world import World

MANY = 8 * GROUP
SPARE = 3  # beyond whole groups


async def worked_off(world: World, session_id: str, tasks: int) -> None:
    """Submitted, claimed and finished, each in one batch."""
    await world.store.commit([world.submit() for _ in range(tasks)])
    taken = await world.claimed(session_id, tasks)
    replies = await world.store.commit([world.finish(task) for task in taken])
    assert len(taken) == tasks
    assert [reply.refusal for reply in replies] == [None] * tasks


async def test_batch_after_batch_nothing_is_prepared_anew(world: World) -> None:
    session_id = await world.open_session(concurrency=1_000)
    await worked_off(world, session_id, MANY + SPARE)
    connection = driver_of(world)._connection
    before = connection.cache_stats()
    for _ in range(5):
        await worked_off(world, session_id, MANY + SPARE)
    after = connection.cache_stats()

    assert after["hits"] > before["hits"]
    assert after["misses"] == before["misses"]


async def test_many_tasks_are_moved_by_their_keys(world: World) -> None:
    rows = driver_of(world)._connection.execute(
        f"EXPLAIN QUERY PLAN {_MOVE_TASK.grouped}", (None,) * _MOVE_TASK.grouped.count("?")
    )
    plan = [row[3] for row in rows]

    assert "SEARCH tasks USING INDEX sqlite_autoindex_tasks_1 (namespace=? AND id=?)" in plan
