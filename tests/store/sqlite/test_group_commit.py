"""Commits share transactions, are made on the event loop where that is possible, and none is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from endwell.errors import UsageError
from endwell.store.group_commit import BATCH_LIMIT
from endwell.store.sqlite import log_file
from endwell.store.sqlite.connection import CHECKPOINT_BYTES
from endwell.store.sqlite.store import SqliteStore
from tests.store.world import SqliteDatabase, World


class Bell:
    """Counts how often it is rung: once after each transaction with a topic."""

    def __init__(self) -> None:
        self.rings = 0

    def __call__(self, _topics: set[str]) -> None:
        self.rings += 1


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
async def store(sqlite_database: SqliteDatabase, bell: Bell) -> AsyncIterator[SqliteStore]:
    store = sqlite_database.store(ring=bell)
    await store.open()
    yield store
    await store.close()


@contextmanager
def another_process_writing(path: Path) -> Iterator[None]:
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def test_commits_made_at_once_share_a_transaction(world: World, store: SqliteStore, bell: Bell) -> None:
    await asyncio.gather(*(store.commit([world.submit()]) for _ in range(BATCH_LIMIT)))
    assert bell.rings == 1
    assert await store.counts_by_status("default") == {"queued": BATCH_LIMIT}


async def test_a_transaction_has_at_most_batch_limit_commands(
    world: World, store: SqliteStore, bell: Bell
) -> None:
    await asyncio.gather(*(store.commit([world.submit()]) for _ in range(2 * BATCH_LIMIT + 1)))
    assert bell.rings == 3


async def test_a_commit_does_not_block_the_event_loop_while_another_process_writes(
    world: World, sqlite_database: SqliteDatabase
) -> None:
    with another_process_writing(sqlite_database.path):
        commit = asyncio.create_task(world.store.commit([world.submit()]))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not commit.done()
    assert (await commit)[0].is_new


async def test_a_caller_that_commits_in_a_loop_lets_other_tasks_run(world: World, store: SqliteStore) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for _ in range(20):
        await store.commit([world.submit()])
    counting.cancel()
    assert turns >= 20


async def test_a_heartbeat_is_committed_before_other_commands_that_wait(
    world: World, sqlite_database: SqliteDatabase
) -> None:
    await world.open_session()
    served: list[str] = []

    async def ask(name: str, *commands: Any) -> None:
        await world.store.commit(commands)
        served.append(name)

    with another_process_writing(sqlite_database.path):
        many = [world.submit() for _ in range(BATCH_LIMIT)]
        asked = [asyncio.create_task(ask(name, *many)) for name in ("first", "second")]
        await asyncio.sleep(0)
        asked.append(asyncio.create_task(ask("heartbeat", world.heartbeat())))
        await asyncio.sleep(0)
    await asyncio.gather(*asked)
    assert served[0] == "heartbeat"


async def test_commits_of_several_event_loops_at_once_are_all_stored(
    world: World, store: SqliteStore, bell: Bell
) -> None:
    each, threads = 40, 6

    async def on_a_loop() -> None:
        await asyncio.gather(*(store.commit([world.submit()]) for _ in range(each)))

    def on_another_loop() -> None:
        asyncio.run(on_a_loop())

    await asyncio.gather(
        on_a_loop(),
        *(asyncio.to_thread(on_another_loop) for _ in range(threads)),
    )
    assert await store.counts_by_status("default") == {"queued": each * (threads + 1)}
    assert bell.rings < each * (threads + 1)
    assert await world.problems() == []


async def test_a_long_write_ahead_log_is_folded_back(world: World, sqlite_database: SqliteDatabase) -> None:
    payload = b'"' + b"x" * 500_000 + b'"'
    sizes = []
    for _ in range(20):
        await world.store.commit([world.submit(payload=payload) for _ in range(4)])
        sizes.append(os.stat(f"{sqlite_database.path}-wal").st_size)
    assert CHECKPOINT_BYTES < max(sizes) < 1.5 * CHECKPOINT_BYTES


async def test_commits_succeed_although_a_checkpoint_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise apsw.IOError("the disk answered nonsense")

    monkeypatch.setattr(log_file, "CHECKPOINT_BYTES", 0)
    monkeypatch.setattr(log_file.LogFile, "_fold", fail)
    for _ in range(3):
        assert (await world.reply(world.submit())).is_new
    assert await world.store.counts_by_status("default") == {"queued": 3}


class Interrupted:
    """A connection whose next COMMIT is interrupted by Ctrl-C, before or after it took place."""

    def __init__(self, real: Any, when: str) -> None:
        self._real = real
        self._when: str | None = when

    def execute(self, sql: str, *rest: Any) -> Any:
        if sql == "COMMIT" and self._when is not None:
            when, self._when = self._when, None
            if when == "after":
                self._real.execute(sql)
            raise KeyboardInterrupt
        return self._real.execute(sql, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_interrupted_commit_does_not_lose_the_commands_of_its_batch(world: World, when: str) -> None:
    await world.open_session()
    task = await world.queued_task()
    neighbour = asyncio.create_task(world.store.commit([world.claim_next()]))
    await asyncio.sleep(0)  # it has asked, and lets others join
    driver = world.store._writer  # type: ignore[attr-defined]
    driver._connection = Interrupted(driver._connection, when)
    interrupted: list[BaseException] = []

    def commit_in_a_loop_that_is_interrupted() -> None:
        try:
            asyncio.run(world.reply(world.submit()))
        except KeyboardInterrupt as error:
            interrupted.append(error)

    thread = threading.Thread(target=commit_in_a_loop_that_is_interrupted)
    thread.start()
    thread.join()  # the neighbour's loop stands still: its command is in the interrupted batch
    assert interrupted
    (reply,) = await neighbour
    assert [offer.task.id for offer in reply.taken] == [task.id]
    assert (await world.history(task)).count("task.claimed") == 1
    assert await world.problems() == []


async def test_a_cancelled_commit_is_stored_all_the_same(world: World) -> None:
    commit = asyncio.create_task(world.store.commit([world.submit()]))
    await asyncio.sleep(0)
    commit.cancel()
    await asyncio.wait([commit])
    await world.store.close()
    await world.open()
    assert await world.store.counts_by_status("default") == {"queued": 1}


async def test_closing_commits_what_waits_and_refuses_later_commands(
    world: World, sqlite_database: SqliteDatabase
) -> None:
    with another_process_writing(sqlite_database.path):
        waiting = [asyncio.create_task(world.store.commit([world.submit()])) for _ in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(world.store.close())
        await asyncio.wait([closing], timeout=0.05)
        assert not closing.done()
    await closing
    assert [reply.is_new for commit in waiting for reply in await commit] == [True, True, True]
    with pytest.raises(UsageError, match="not open"):
        await world.store.commit([world.submit()])


async def test_a_forked_child_is_refused(world: World) -> None:
    child = os.fork()
    if child == 0:
        try:
            world.store.commit([world.submit()]).send(None)
        except UsageError:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
