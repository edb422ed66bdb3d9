"""Positions in the log: in order for every task, complete for every follower, on a busy server too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec.structs import astuple

from endwell.model import commands as c
from endwell.operate.record.verify import verify
from endwell.pmo.relay.service import relay_lag
from endwell.store.contract import Store
from endwell.store.log import Event, EventRow
from endwell.store.postgres.row_reader import PostgresRowReader
from endwell.store.postgres.row_writer import event_blocks
from endwell.store.postgres.statements import POSITIONS_DRAWN
from tests.servers.postgres import Postgres
from tests.store.copies import WRITTEN, exported, imported, relayed, tail
from tests.store.world import PostgresDatabase, SqliteDatabase, World

TASKS = 300


@pytest.fixture
async def here(postgres_database: PostgresDatabase) -> AsyncIterator[World]:
    world = World(postgres_database)
    await world.open()
    yield world
    await world.close()


@pytest.fixture
async def stranger(postgres_database: PostgresDatabase) -> AsyncIterator[Any]:
    """A connection of another program, on the schema of the store."""
    connection = await asyncpg.connect(
        postgres_database.url, server_settings={"application_name": "intruder"}
    )
    yield connection
    connection.terminate()


def inversions(events: list[Event]) -> list[str]:
    """Events that come before an earlier version of their task, or a second time."""
    versions: dict[str, int] = {}
    wrong = []
    for event in events:
        if event.version != versions.get(event.task_id, 0) + 1:
            wrong.append(event.event_id)
        versions[event.task_id] = event.version
    return wrong


async def test_one_worker_and_one_submitter_leave_no_event_out_of_order(here: World, tmp_path: Path) -> None:
    submitter = await here.another_store()
    await here.open_session(concurrency=TASKS)
    seen: list[Event] = []

    async def submit() -> None:
        for _ in range(TASKS // 10):
            await submitter.commit([here.submit() for _ in range(10)])

    async def work() -> None:
        count = 0
        while count < TASKS:
            for task in await here.claimed(limit=7):
                await here.do(here.finish(task))
                count += 1

    async def follow(store: Store) -> None:
        cursor, ended = "", 0
        while ended < TASKS:
            for one in await store.events_after("default", cursor, 50):
                seen.append(one.event)
                cursor = one.cursor
                ended += one.event.type == "task.succeeded"

    await asyncio.gather(submit(), work(), follow(await here.another_store()))

    assert inversions(seen) == []
    assert seen == await tail(here.store), "a follower at work sees what a later one sees"
    assert (await verify(here.store, ["default"]))["problems"] == []
    copy = await imported(SqliteDatabase(tmp_path / "copy.db"), await exported(here.store))
    assert await tail(copy.store) == seen
    await copy.close()


async def test_a_task_submitted_during_the_claim_that_takes_it_is_logged_before_it(
    here: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim locks its session, which gives it a transaction number, before it reads the tasks it takes."""
    submitter = await here.another_store()
    await here.open_session()
    lock_sessions = PostgresRowReader._read_sessions

    async def lock_and_submit(reading: PostgresRowReader, wanted: Any) -> None:
        await lock_sessions(reading, wanted)
        await submitter.commit_one(here.submit())

    monkeypatch.setattr(PostgresRowReader, "_read_sessions", lock_and_submit)
    (task,) = await here.claimed()
    monkeypatch.undo()
    await here.do(here.finish(task))

    seen = await tail(here.store)
    assert [event.version for event in seen] == [1, 2, 3, 4, 5]
    copy = await imported(SqliteDatabase(tmp_path / "copy.db"), await exported(here.store))
    assert await tail(copy.store) == seen
    await copy.close()


async def test_a_follower_of_writers_that_commit_in_any_order_skips_nothing(
    here: World, postgres_database: PostgresDatabase
) -> None:
    dice = random.Random(7)
    idle = [await asyncpg.connect(postgres_database.url) for _ in range(6)]
    busy: list[Any] = []
    seen, cursor = list[str](), ""

    async def look() -> str:
        page = await here.store.events_after("default", cursor, 3)
        seen.extend(one.event.task_id for one in page)
        return page[-1].cursor if page else cursor

    for number in range(200):
        if busy and (not idle or dice.random() < 0.5):
            writer = busy.pop(dice.randrange(len(busy)))
            await writer.execute(dice.choice(("COMMIT", "COMMIT", "ROLLBACK")))
            idle.append(writer)
        else:
            writer = idle.pop(dice.randrange(len(idle)))
            await writer.execute("BEGIN")
            await writer.execute(WRITTEN, f"t{number}")
            busy.append(writer)
        cursor = await look()
    for writer in busy:
        await writer.execute("COMMIT")
    while cursor != (cursor := await look()):
        pass
    committed = [row[0] for row in await (idle + busy)[0].fetch("SELECT task_id FROM events ORDER BY seq")]
    assert seen == committed
    for writer in idle + busy:
        await writer.close()


@pytest.mark.parametrize("is_same_database", [True, False])
async def test_an_open_transaction_of_another_program_holds_nobody_up(
    here: World, stranger: Any, postgres_server: Postgres, is_same_database: bool
) -> None:
    other = stranger if is_same_database else await asyncpg.connect(postgres_server.create_database())
    await other.execute("BEGIN")
    await other.execute("CREATE TABLE elsewhere (n int)")
    await other.execute("SELECT pg_current_xact_id()")
    task = await here.running_task()
    await here.do(here.finish(task))

    events = await here.store.events_of_task("default", task.id)
    assert await tail(here.store) == events
    assert sum(b'"event"' in line for line in await exported(here.store)) == len(events)
    assert len(await relayed(here.store)) > 0
    assert await relay_lag(here.store, "default", await here.store.now()) == 0
    await other.execute("ROLLBACK")
    if not is_same_database:
        await other.close()


async def test_a_writer_of_events_that_stays_open_holds_up_followers_and_nothing_else(
    here: World, stranger: Any
) -> None:
    assert await relayed(here.store) == []
    start = await here.store.log_end()
    await stranger.execute("BEGIN")
    await stranger.execute(WRITTEN, "late")
    task = await here.queued_task()
    here.advance(100)

    assert await tail(here.store, start) == []
    assert await relayed(here.store) == []
    assert await relay_lag(here.store, "default", await here.store.now()) >= 100_000_000  # type: ignore[operator]
    events = [line for line in await exported(here.store) if b'"event"' in line]
    assert len(events) == len(await here.store.events_of_task("default", task.id))
    (holder,) = await here.store.log_holders(0)
    (database,) = await stranger.fetchrow("SELECT current_database()")
    assert (holder.pid, holder.application, holder.database) == (
        stranger.get_server_pid(),
        "intruder",
        database,
    )
    assert holder.seconds is not None
    assert await here.store.log_holders(3600) == []

    await stranger.execute("ROLLBACK")
    assert await here.store.log_holders(0) == []
    assert [event.task_id for event in await tail(here.store, start)][:1] == [task.id]


async def test_a_session_that_has_just_ended_its_transaction_is_not_blamed(
    here: World, stranger: Any
) -> None:
    lock = "pg_advisory_lock_shared('events'::regclass::oid::int, 0)"
    await stranger.execute(f"SELECT {lock}")  # outside a transaction: as a lock seen a moment too late
    assert await here.store.log_holders(3600) == []
    assert [one.pid for one in await here.store.log_holders(0)] == [stranger.get_server_pid()]


async def test_two_stores_in_one_database_do_not_wait_for_each_other(
    here: World, stranger: Any, shared_postgres_url: str
) -> None:
    await here.database.sql("CREATE SCHEMA second_store")
    other = World(PostgresDatabase(f"{shared_postgres_url}?search_path=second_store"))
    await other.open()
    await stranger.execute("BEGIN")
    await stranger.execute(WRITTEN, "late")
    await other.queued_task()
    assert len(await tail(other.store)) > 0
    assert await other.store.log_holders(0) == []
    await other.close()
    await here.database.sql("SET client_min_messages = warning; DROP SCHEMA second_store CASCADE")


@pytest.mark.parametrize("last", [2**31 - 2, 2**32 - 2, 3 * 2**32 - 1, 5 * 2**31 + 7])
async def test_positions_beyond_four_billion_hold_followers_back_as_others_do(
    here: World, stranger: Any, last: int
) -> None:
    await stranger.execute("SELECT setval('events_seq_seq', $1)", last * POSITIONS_DRAWN)
    start = await here.store.log_end()
    assert start == str(last * POSITIONS_DRAWN + POSITIONS_DRAWN - 1)
    await stranger.execute("BEGIN")
    await stranger.execute(WRITTEN, "late")
    task = await here.queued_task()
    assert await tail(here.store, start) == []
    await stranger.execute("COMMIT")
    assert [event.task_id for event in await tail(here.store, start)][:2] == ["late", task.id]


async def test_a_sequence_that_was_set_by_hand_inside_a_block_hides_nothing(
    here: World, stranger: Any
) -> None:
    await stranger.execute("SELECT setval('events_seq_seq', $1)", 3 * POSITIONS_DRAWN + 5)
    again = await here.another_store()
    await again.commit([here.submit() for _ in range(5)])
    assert len(await tail(here.store)) == 5
    assert await stranger.fetchval("SELECT min(seq) FROM events") == 5 * POSITIONS_DRAWN


async def test_the_events_of_a_command_are_consecutive_although_others_write(
    here: World, stranger: Any
) -> None:
    """Followers take what one command did to a task as a whole: a turn's end with the task's."""
    await here.open_session(concurrency=1200)
    stores = [await here.another_store() for _ in range(4)]

    async def write(store: Store) -> None:
        for _ in range(15):
            await store.commit([here.submit() for _ in range(20)])
            await store.commit([here.claim_next(limit=20)])

    await asyncio.gather(*map(write, stores))
    rows = await stranger.fetch("SELECT seq / $1, command_id FROM events ORDER BY seq", POSITIONS_DRAWN)
    commits = [key for key, _ in groupby(tuple(row) for row in rows)]
    assert len({command for _, command in commits}) == len(commits) < len(rows)


async def test_a_transaction_of_more_events_than_are_drawn_at_once_keeps_each_command_together(
    here: World,
) -> None:
    rows = [row(number, f"c{number // 3}") for number in range(20)]
    runs = event_blocks(rows, most=7)
    assert [len(run) for run in runs] == [6, 6, 6, 2]
    assert [one for run in runs for one in run] == rows
    await here.store.commit([here.submit() for _ in range(POSITIONS_DRAWN + 10)])
    assert len(await tail(here.store)) == POSITIONS_DRAWN + 10


def row(number: int, command_id: str) -> EventRow:
    """An event of a task of its own, as the store writes it."""
    event = Event("default", f"t{number}", 1, "task.created", 1, command_id, None, "", 1, None, 0, b"{}", b"")
    return astuple(event)


async def test_opening_a_store_whose_sequence_was_left_behind_raises_it(here: World, stranger: Any) -> None:
    await here.queued_task()
    cursor = c.TakeCursor(
        command_id="c", namespace="default", actor="", name="relay", holder="h", lease=0, start="5000"
    )
    await here.store.commit_one(cursor)
    await stranger.execute("ALTER SEQUENCE events_seq_seq RESTART")

    again = await here.another_store()
    task = (await again.commit_one(here.submit())).unwrap()
    position = "SELECT min(seq) FROM events WHERE task_id = $1"
    assert await stranger.fetchval(position, task.id) > 5000
    await again.close()
    here._others.remove(again)


async def test_a_moved_event_is_found_by_verify(here: World, stranger: Any) -> None:
    task = await here.running_task()
    await here.do(here.finish(task))
    await stranger.execute("ALTER TABLE events ALTER seq SET GENERATED BY DEFAULT")
    await stranger.execute("UPDATE events SET seq = 100000 WHERE version = 2")
    problems = (await verify(here.store, ["default"]))["problems"]
    assert problems == [{"task_id": task.id, "version": 3, "kind": "out_of_order", "about": ""}]


async def test_an_export_is_one_moment_of_a_store_at_work(here: World) -> None:
    """What is committed while it is written is not in it, neither as event nor as content."""
    first = await here.queued_task()
    async with here.store.snapshot() as record:
        assert len(await record.events_after("default", "", 100)) == 1
        second = await here.queued_task()
        assert {one.event.task_id for one in await record.events_after("default", "", 100)} == {first.id}
        assert await record.cards_between("default", f"{second.id}.", f"{second.id}/") == []


async def test_an_unwritable_export_is_not_blamed_on_the_server(here: World) -> None:
    await here.queued_task()
    with pytest.raises(BrokenPipeError):
        async with here.store.snapshot():
            raise BrokenPipeError
