"""Claims of a long backlog begin where the last one ended, and leave no task behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from endwell.model import commands as c
from endwell.model.task import Task
from endwell.runtime import Runtime
from endwell.store.claim_position import FROM_START_SECONDS
from endwell.store.postgres.connection import COMMITTING
from endwell.store.postgres.statements import QUERIES
from endwell.store.reads.streams import START, QueuePosition
from tests.store.world import PostgresDatabase, World
from tests.support.manual_clock import ManualClock

BATCH = 50


@pytest.fixture
def clock(postgres_database: PostgresDatabase) -> ManualClock:
    """A process's own clock, which only the test moves."""
    clock = ManualClock()
    postgres_database.runtime = Runtime.system(clock=clock)
    return clock


@pytest.fixture
async def world(postgres_database: PostgresDatabase, clock: ManualClock) -> AsyncIterator[World]:
    world = World(postgres_database)
    await world.open()
    await world.open_session(lease=3600, concurrency=10_000)
    yield world
    await world.close()


async def backlog(world: World, count: int) -> list[str]:
    """Tasks in the order in which they are to be taken."""
    replies = await world.store.commit([world.submit() for _ in range(count)])
    return [reply.unwrap().id for reply in replies]


async def given_back(world: World, *tasks: Task) -> None:
    for task in tasks:
        await world.do(world.to(c.HandBack, task))


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


async def test_a_long_backlog_is_claimed_in_its_order_batch_by_batch(world: World) -> None:
    submitted = await backlog(world, 4 * BATCH + 7)
    claimed = list[str]()
    while taken := await world.claimed(limit=BATCH):
        claimed += ids(taken)
    assert claimed == submitted


async def test_a_task_that_was_given_back_is_claimed_first_a_moment_later(
    world: World, clock: ManualClock
) -> None:
    submitted = await backlog(world, 4 * BATCH)
    first, *_ = await world.claimed(limit=BATCH)
    await given_back(world, first)

    passed_by = await world.claimed(limit=BATCH)
    assert ids(passed_by) == submitted[BATCH : 2 * BATCH]

    clock.advance(FROM_START_SECONDS + 0.1)
    assert ids(await world.claimed(limit=BATCH)) == [first.id, *submitted[2 * BATCH : 3 * BATCH - 1]]


async def test_a_claim_that_is_not_filled_looks_from_the_start_again(world: World) -> None:
    submitted = await backlog(world, 2 * BATCH + 10)
    some = await world.claimed(limit=BATCH)
    await given_back(world, *some[:5])
    await world.claimed(limit=BATCH)

    last = await world.claimed(limit=BATCH)

    assert ids(last) == [*submitted[:5], *submitted[-10:]]


async def test_an_urgent_task_is_claimed_before_the_position_of_the_last_claim(world: World) -> None:
    submitted = await backlog(world, 4 * BATCH)
    await world.claimed(limit=BATCH)
    urgent = await world.queued_task(priority=9)
    taken = await world.claimed(limit=BATCH)
    assert ids(taken) == [urgent.id, *submitted[BATCH : 2 * BATCH - 1]]


async def test_a_small_claim_always_takes_the_first(world: World) -> None:
    await backlog(world, 4 * BATCH)
    first, *_ = await world.claimed(limit=BATCH)
    await given_back(world, first)
    assert ids(await world.claimed(limit=1)) == [first.id]


async def test_dispatches_begin_where_the_last_one_ended(world: World) -> None:
    submitted = await backlog(world, 2 * BATCH + 3)
    offered = list[str]()
    while taken := (await world.store.commit_one(world.dispatch_next(BATCH))).taken:
        offered += [offer.task.id for offer in taken]
    assert offered == submitted


async def test_a_claim_does_not_read_entries_of_tasks_taken_before(
    world: World, postgres_database: PostgresDatabase
) -> None:
    """Counted in pages, because that is what a claim costs in a backlog of a million."""
    await backlog(world, 4000)
    taken = list[Task]()
    while len(taken) < 3600:
        taken += await world.claimed(limit=200)
    last = taken[-1]
    place = QueuePosition(last.priority, last.run_at, last.id)

    assert 3 * await pages(postgres_database, place) < await pages(postgres_database, START)


async def pages(database: PostgresDatabase, place: QueuePosition) -> int:
    """How many pages are looked at to find the next task behind a place."""
    connection = await asyncpg.connect(database.url, server_settings=COMMITTING)
    try:
        await connection.execute(f"PREPARE offers AS {QUERIES['offers']}")
        about = "'default', '{coder}', 1, 0, 0, 0, 3, false"
        behind = ", ".join("'{NULL}'" if each is None else f"'{{{each}}}'" for each in place)
        told = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE offers({about}, {behind})"
        )
    finally:
        await connection.close()
    return int(json.loads(told)[0]["Plan"]["Shared Hit Blocks"])
