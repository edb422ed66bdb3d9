"""A file of an earlier release works without manual steps and keeps every task and event."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from endwell.store.migrations import all_migrations
from tests.store.world import SqliteDatabase, World

_KEPT = ("tasks", "events", "cards", "sessions", "agents")


@pytest.mark.covers("S2.28")
async def test_a_file_of_the_second_schema_keeps_its_tasks_log_and_turns(tmp_path: Path) -> None:
    world = World(SqliteDatabase(tmp_path / "new.db"))
    await world.open()
    ended = await world.running_task()
    await world.do(world.finish(ended))
    waiting = await world.queued_task()
    turns = await world.store.turns_of_task("default", ended.id)
    await world.close()
    _as_of(2, tmp_path / "new.db", tmp_path / "old.db")

    world = World(SqliteDatabase(tmp_path / "old.db"))
    await world.open()
    try:
        assert await world.problems() == []
        assert (await world.task(ended)).status == "succeeded"
        assert [turn.outcome for turn in turns] == ["success"]
        assert await world.store.turns_of_task("default", ended.id) == turns
        await world.do(world.finish(await world.claim(waiting)))
        assert await world.problems() == []
    finally:
        await world.close()


def _as_of(schema: int, new: Path, old: Path) -> None:
    """The same rows in a file as the release of that schema has left it."""
    connection = apsw.Connection(str(old))
    for step in all_migrations("sqlite")[:schema]:
        connection.execute(step.sql).fetchall()
    connection.execute("ATTACH ? AS later", (str(new),))
    for table in _KEPT:
        names = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
        connection.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM later.{table}")
    connection.execute("DETACH later")
    connection.execute(f"PRAGMA user_version = {schema}").fetchall()
    connection.close()
