"""The stamp of a store changes with every commit, however slow the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from endwell.model.commands import AgentSpec
from endwell.store.sqlite.store import SqliteStore
from tests.patience import PATIENCE_SECONDS
from tests.store.processes import lines_of, start
from tests.store.world import LIMITS, SqliteDatabase, World


async def test_each_commit_of_any_store_changes_the_stamp(world: World) -> None:
    other = await world.another_store()
    for store in (other, world.store, other):
        before = world.store.stamp()
        assert before is not None
        await store.commit_one(world.submit())
        assert world.store.stamp() != before


async def test_without_a_commit_the_stamp_stays_the_same(
    world: World, sqlite_database: SqliteDatabase
) -> None:
    await world.queued_task()
    before = world.store.stamp()
    await world.store.counts_by_status("default")
    assert world.store.stamp() == before
    await sqlite_database.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    await world.queued_task()
    assert world.store.stamp() != before


async def test_another_process_that_commits_changes_the_stamp(
    world: World, sqlite_database: SqliteDatabase
) -> None:
    before = world.store.stamp()
    await lines_of(start(sqlite_database, "submit", "1"))
    assert before is not None
    assert world.store.stamp() != before


class SlowFile(apsw.VFSFile):
    """A log whose last write is long on its way to the disk."""

    disk: SlowDisk

    def xSync(self, flags: int) -> None:  # noqa: N802 (SQLite's name)
        self.disk.sync()
        super().xSync(flags)


class SlowDisk(apsw.VFS):
    """Waits, once told to, until the test lets it go on."""

    def __init__(self) -> None:
        self.name = f"slow-{id(self)}"
        self.is_slow = False
        self.waits, self.goes_on = threading.Event(), threading.Event()
        super().__init__(self.name, "")

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        file = SlowFile("", name, flags)
        file.disk = self
        return file

    def sync(self) -> None:
        if self.is_slow:
            self.waits.set()
            self.goes_on.wait(PATIENCE_SECONDS)


@contextmanager
def slow_disk() -> Iterator[SlowDisk]:
    disk = SlowDisk()
    yield disk
    disk.unregister()


async def test_a_commit_that_waits_for_the_disk_changes_the_stamp_when_it_is_done(
    world: World, sqlite_database: SqliteDatabase
) -> None:
    """Its pages are in the log's file by then; they count when the disk has them."""
    await world.register(AgentSpec(name="coder"))
    path = sqlite_database.path
    with slow_disk() as disk:
        writer = apsw.Connection(str(path), vfs=disk.name)
        writer.execute("PRAGMA synchronous = full; PRAGMA wal_autocheckpoint = 0").fetchall()
        disk.is_slow = True
        writing = asyncio.create_task(asyncio.to_thread(writer.execute, "UPDATE agents SET version = 'x'"))
        await asyncio.to_thread(disk.waits.wait, PATIENCE_SECONDS)
        while_it_waits = world.store.stamp()
        disk.goes_on.set()
        await writing
        assert while_it_waits is not None
        assert world.store.stamp() != while_it_waits
        writer.close()


async def test_a_store_that_is_answering_a_question_has_no_stamp(
    sqlite_database: SqliteDatabase,
) -> None:
    store = SqliteStore(sqlite_database.path, limits=LIMITS, runtime=sqlite_database.runtime)
    await store.open()
    with store._reading:
        assert store.stamp() is None
    assert store.stamp() is not None
    await store.close()
