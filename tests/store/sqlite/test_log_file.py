"""The write-ahead log is longer than it need be: commits in place are quicker. Nothing depends on it."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from endwell.store.sqlite.connection import CHECKPOINT_BYTES
from endwell.store.sqlite.driver import SqliteDriver
from endwell.store.sqlite.log_file import FRAME_HEADER_BYTES, MANY, STEP_BYTES, LogFile
from endwell.store.sqlite.store import SqliteStore
from tests.store.log_bytes import log_bytes
from tests.store.processes import PATIENCE, lines_of, start
from tests.store.sqlite.test_desk import somebody_else_writing
from tests.store.world import SqliteDatabase, World
from tests.support.world import eventually


class Log:
    """The log of a test's store."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._path = Path(f"{database.path}-wal")

    @property
    def size(self) -> int:
        return self._path.stat().st_size

    @property
    def used(self) -> int:
        return log_bytes(self._database.path)

    @property
    def end(self) -> bytes:
        return self._path.read_bytes()[-FRAME_HEADER_BYTES:]


@pytest.fixture
def log(sqlite_database: SqliteDatabase) -> Log:
    return Log(sqlite_database)


def driver_of(world: World) -> SqliteDriver:
    assert isinstance(world.store, SqliteStore)
    return world.store._driver(world.store._writer)


async def test_after_many_small_commits_the_next_ones_need_not_make_the_log_longer(
    world: World, log: Log
) -> None:
    for _ in range(2 * MANY):
        await world.queued_task()
    await eventually(lambda: log.size >= max(2 * log.used, STEP_BYTES))
    used, made = log.used, log.size
    await world.queued_task()

    assert used < log.used < made
    assert log.end == bytes(FRAME_HEADER_BYTES)


async def test_as_much_room_is_kept_as_was_used_until_the_log_is_folded_back(world: World, log: Log) -> None:
    while log.used < CHECKPOINT_BYTES / 2:
        for _ in range(2 * MANY):
            await world.queued_task(payload=b'"%s"' % (b"x" * 50_000))
        await eventually(lambda: log.size >= min(2 * log.used, CHECKPOINT_BYTES))

    assert log.size == CHECKPOINT_BYTES


async def test_who_makes_a_few_commits_or_large_ones_makes_no_room(world: World, log: Log) -> None:
    for _ in range(2 * MANY):
        await world.store.commit([world.submit() for _ in range(200)])
    for _ in range(MANY // 2):
        await world.queued_task()

    assert not driver_of(world).is_log_tight
    assert log.used == pytest.approx(log.size, abs=64)


async def test_what_a_killed_process_committed_is_found_in_a_log_that_ends_in_zeros(
    sqlite_database: SqliteDatabase, log: Log
) -> None:
    child = start(sqlite_database, "submit-in-turn", "1000000")
    said = [await asyncio.to_thread(child.read_line, PATIENCE) for _ in range(60)]
    child.kill()
    await asyncio.to_thread(child.wait, PATIENCE)
    assert log.end == bytes(FRAME_HEADER_BYTES)

    world = World(sqlite_database)
    await world.open()
    found = [await world.store.task("default", task_id or "") for task_id in said]
    assert {task.status for task in found} == {"queued"}
    assert await world.problems() == []
    await world.close()


async def test_room_is_made_while_others_commit_and_none_of_their_commits_is_lost(
    world: World, sqlite_database: SqliteDatabase, log: Log, tmp_path: Path
) -> None:
    """Read from the log itself, as after a crash: a zero among what was committed would end it there."""
    each = 60
    others = [start(sqlite_database, "submit-in-turn", str(each)) for _ in range(3)]
    for _ in range(each):
        await world.queued_task()
    said = [line for child in others for line in await lines_of(child)]

    assert len(set(said)) == 3 * each
    assert log.size > log.used + STEP_BYTES
    for part in ("", "-wal"):
        shutil.copy(f"{sqlite_database.path}{part}", tmp_path / f"copy{part}")
    found = World(SqliteDatabase(tmp_path / "copy"))
    await found.open()
    assert await found.store.counts("default") == {"queued": 4 * each}
    assert await found.problems() == []
    await found.close()


async def test_no_room_is_made_while_somebody_else_writes_where_it_would_be(world: World, log: Log) -> None:
    await world.queued_task()
    driver = driver_of(world)
    driver.never_wait()
    size = log.size
    with somebody_else_writing(driver.path):
        LogFile(driver.path, driver._connection).make_room(driver._connection)
        assert log.size == size
    LogFile(driver.path, driver._connection).make_room(driver._connection)
    assert log.size == size + STEP_BYTES


async def test_a_log_that_cannot_be_opened_is_let_be(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def too_many_open_files(path: str, flags: int) -> int:
        asked.append(path)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", too_many_open_files)
    while not asked:
        await world.queued_task()
    for _ in range(2 * MANY):
        await world.queued_task()

    assert len(asked) == 1
    assert not driver_of(world).is_log_tight


async def test_where_the_disk_has_no_room_the_log_is_left_as_it_is(
    world: World, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def half_written(handle: int, data: bytes, place: int) -> int:
        asked.append(place)
        return real(handle, data[: len(data) // 2], place)

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", half_written)
    while not asked:
        await world.queued_task()
    await world.queued_task()  # waits for the store's thread, if it is still at it

    assert log.used == pytest.approx(log.size, abs=64)
    for _ in range(2 * MANY):
        await world.queued_task()
    assert len(asked) == 1
    assert await world.problems() == []
