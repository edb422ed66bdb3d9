"""A batch of many tasks is a few statements, and they stay prepared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from endwell.store.sqlite.driver import SqliteDriver
from endwell.store.sqlite.row_writer import _MOVE_TASK
from endwell.store.sqlite.statements import GROUP
from endwell.store.sqlite.store import SqliteStore
from tests.patience import PATIENCE_SECONDS
from tests.store.world import World

MANY = 8 * GROUP
SPARE = 3  # beyond whole groups


def driver_of(world: World) -> SqliteDriver:
    assert isinstance(world.store, SqliteStore)
    return world.store._writer


async def worked_off(world: World, session_id: str, tasks: int) -> None:
    """Submitted, claimed and finished, each in one batch."""
    await world.store.commit([world.submit() for _ in range(tasks)])
    taken = await world.claimed(session_id, tasks)
    replies = await world.store.commit([world.finish(task) for task in taken])
    assert len(taken) == tasks
    assert [reply.refusal for reply in replies] == [None] * tasks


async def test_statements_stay_prepared_from_batch_to_batch(world: World) -> None:
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


COUNTED = """
import sys
from pathlib import Path
import apsw
from endwell.store.sqlite import connection as c
other = apsw.Connection(":memory:") if sys.argv[2] == "in use" else None
c.count_no_memory()
opened = c.connect(Path(sys.argv[1]), lambda count: False)
opened.execute("CREATE TABLE t (a)")
print(apsw.memory_used() > 0, other is None or other.execute("SELECT 1").fetchall() == [(1,)])
"""


@pytest.mark.parametrize(("state", "is_counted"), [("unused", False), ("in use", True)])
def test_memory_is_counted_only_if_sqlite_was_in_use_before(
    tmp_path: Path, state: str, is_counted: bool
) -> None:
    words = [sys.executable, "-c", COUNTED, str(tmp_path / "s.db"), state]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS).stdout
    assert said.split() == [str(is_counted), "True"]
