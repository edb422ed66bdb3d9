"""Files that are locked, read-only, full, foreign or missing: a clear error, and later commits succeed."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import apsw
import pytest

from endwell.errors import StoreError, UsageError
from endwell.store.contract import Store
from endwell.store.sqlite import store as store_module
from endwell.store.sqlite.connection import CHECKPOINT_BYTES
from tests.store.processes import lines_of, start
from tests.store.world import SqliteDatabase, World


@pytest.fixture
def path(sqlite_database: SqliteDatabase) -> Path:
    return sqlite_database.path


async def test_the_file_is_readable_by_its_owner_alone(world: World, path: Path) -> None:
    await world.queued_task()
    assert [stat.S_IMODE(os.stat(file).st_mode) for file in (path, f"{path}-wal")] == [0o600, 0o600]


# locked


async def test_a_commit_waits_for_another_writer(world: World, path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    command = world.submit()
    commit = asyncio.create_task(world.store.commit([command]))
    await asyncio.wait([commit], timeout=0.05)
    assert not commit.done()
    other.execute("COMMIT")
    assert (await commit)[0].is_new
    other.close()


async def test_a_commit_fails_when_another_writer_keeps_the_file(
    world: World, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.02)
    task = await world.queued_task()
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError) as caught:
        await world.store.commit([world.submit(), world.submit()])
    assert caught.value.code == "store_busy"
    assert await world.task(task) == task  # reading still works
    other.execute("ROLLBACK")
    other.close()
    assert await world.store.counts_by_status("default") == {"queued": 1}
    assert (await world.reply(world.submit())).is_new


# unusable files


async def test_a_read_only_file_is_an_error_that_says_so(
    world: World, sqlite_database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.queued_task()
    real = apsw.Connection

    class ReadOnly(real):  # type: ignore[misc, valid-type]
        """What a process without the right to write gets; root always has it."""

        def __init__(self, path: str, **options: Any) -> None:
            super().__init__(path, **{**options, "flags": apsw.SQLITE_OPEN_READONLY})

    monkeypatch.setattr(apsw, "Connection", ReadOnly)
    other = sqlite_database.store()
    await other.open()
    monkeypatch.undo()
    with pytest.raises(StoreError) as caught:
        await other.commit([world.submit()])
    assert caught.value.code == "store_read_only"
    assert await other.counts_by_status("default") == {"queued": 1}
    await other.close()
    assert (await world.reply(world.submit())).is_new


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "missing" / "endwell.db")
    with pytest.raises(StoreError, match="missing") as caught:
        await database.store().open()
    assert caught.value.code == "store_unreachable"
    database.path.parent.mkdir()
    world = World(database)
    await world.open()
    await world.queued_task()
    await world.close()


async def test_a_file_that_is_not_a_database_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear reader, " * 200)
    with pytest.raises(StoreError) as caught:
        await SqliteDatabase(path).store().open()
    assert caught.value.code == "store_corrupt"
    assert path.read_text() == "dear reader, " * 200


async def test_a_damaged_file_is_an_error_that_says_so(world: World, sqlite_database: SqliteDatabase) -> None:
    await world.store.commit([world.submit() for _ in range(200)])
    await world.store.close()
    path = sqlite_database.path
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with pytest.raises(StoreError) as caught:
        await _opened_and_asked(sqlite_database.store())
    assert caught.value.code == "store_corrupt"


async def _opened_and_asked(store: Store) -> None:
    await store.open()
    await store.counts_by_status("default")


async def test_a_full_file_refuses_commits_until_there_is_room(world: World) -> None:
    driver = world.store._writer  # type: ignore[attr-defined]
    (pages,) = driver._connection.execute("PRAGMA page_count").fetchone()
    driver._connection.execute(f"PRAGMA max_page_count = {pages + 5}").fetchall()
    with pytest.raises(StoreError) as caught:
        await world.store.commit([world.submit(payload=b'"' + b"x" * 100_000 + b'"')])
    assert caught.value.code == "store_full"
    assert await world.store.counts_by_status("default") == {}
    driver._connection.execute("PRAGMA max_page_count = 1000000").fetchall()
    assert (await world.reply(world.submit())).is_new
    assert await world.problems() == []


async def test_a_full_disk_refuses_commits_until_there_is_room(
    sqlite_database: SqliteDatabase,
) -> None:
    first = World(sqlite_database)
    await first.open()
    await first.close()
    refused, resumed = await lines_of(start(sqlite_database, "fill", str(sqlite_database.path)))
    _, code, stored = refused.split()
    assert code in ("store_full", "store_io_error")
    assert int(stored) > 0
    assert resumed == f"resumed {int(stored) + 1}"
    world = World(sqlite_database)
    await world.open()
    assert await world.problems() == []
    await world.close()


async def test_a_forked_child_is_refused(world: World) -> None:
    command = world.submit()
    child = os.fork()
    if child == 0:
        try:
            world.store.commit([command]).send(None)
        except UsageError:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (await world.reply(command)).is_new


async def test_the_write_ahead_log_stays_small_under_constant_writing(world: World, path: Path) -> None:
    payload = b'"' + b"x" * 500_000 + b'"'
    largest = 0
    for _ in range(30):
        await world.store.commit([world.submit(payload=payload) for _ in range(4)])
        largest = max(largest, os.stat(f"{path}-wal").st_size)
    assert CHECKPOINT_BYTES < largest < 1.5 * CHECKPOINT_BYTES


async def test_a_file_system_without_shared_memory_is_refused(tmp_path: Path) -> None:
    """H-9: as on NFS, where the write-ahead log of several processes cannot work."""
    usual = apsw.vfs_names()[0]
    apsw.set_default_vfs("unix-dotfile")
    try:
        with pytest.raises(StoreError) as caught:
            await SqliteDatabase(tmp_path / "endwell.db").store().open()
    finally:
        apsw.set_default_vfs(usual)
    assert caught.value.code == "store_unsuitable"
    assert "network file systems" in (caught.value.hint or "")
