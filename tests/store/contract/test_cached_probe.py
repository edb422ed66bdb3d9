"""A cached probe is sent to the store only when its answers may have changed, and then always."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from endwell.bench.idle import on_postgres, on_sqlite
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.store.contract import Store
from endwell.store.probe import NOW, CachedProbe, Probe
from tests.store.world import Database, SqliteDatabase, World

AGENTS = ["coder"]
READY = Probe("ready_for_some", ("default", AGENTS, NOW))
START = Probe("next_start_of_some", ("default", AGENTS, NOW), is_value=True)


def standing(store: Store) -> CachedProbe:
    return CachedProbe(store, READY, START, due="next_start_of_some")


@contextlib.asynccontextmanager
async def counted(database: Database) -> AsyncIterator[tuple[World, Counter[tuple[str, str]]]]:
    """A world in which every statement is counted."""
    counts: Counter[tuple[str, str]] = Counter()
    with on_sqlite(counts) if isinstance(database, SqliteDatabase) else on_postgres(counts):
        world = World(database)
        await world.open()
        yield world, counts
        await world.close()


async def told() -> None:
    """Query loggers are called a little later."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_probe_is_sent_again_only_if_the_store_has_no_stamp(
    database: Database,
) -> None:
    async with counted(database) as (world, counts):
        question = standing(world.store)
        await question.ask()
        await told()
        counts.clear()
        for _ in range(5):
            assert not (await question.ask())["ready_for_some"]
        await told()
        assert counts["worker", "statements"] == (0 if world.store.has_stamps else 5)


async def test_a_commit_of_any_store_is_found_by_the_next_probe(world: World) -> None:
    question = standing(world.store)
    other = await world.another_store()
    assert not (await question.ask())["ready_for_some"]
    for store in (world.store, other):
        task = (await store.commit_one(world.submit())).unwrap()
        assert (await question.ask())["ready_for_some"]
        await store.commit_one(world.to(c.Cancel, task))
        assert not (await question.ask())["ready_for_some"]


async def test_a_delayed_start_is_found_in_time_without_a_commit(world: World) -> None:
    task = await world.queued_task(agent="coder", delay=60 * SECOND)
    question = standing(world.store)
    assert (await question.ask())["next_start_of_some"] == task.run_at
    world.advance(59)
    seen = await question.ask()
    assert not seen["ready_for_some"]
    assert seen["next_start_of_some"] - seen.now <= SECOND, "as of now, not as of when it was asked"
    world.advance(1)
    assert (await question.ask())["ready_for_some"]


async def test_a_clock_that_was_set_back_makes_old_answers_void(sqlite_database: SqliteDatabase) -> None:
    world = World(sqlite_database)
    await world.open()
    question = standing(world.store)
    task = await world.queued_task(agent="coder", delay=60 * SECOND)
    world.advance(61)
    assert (await question.ask())["next_start_of_some"] is None
    sqlite_database.clock.set(task.run_at - 2 * SECOND)
    assert (await question.ask())["next_start_of_some"] == task.run_at
    await world.close()


async def test_an_adopted_result_counts_until_it_is_forgotten(database: Database) -> None:
    async with counted(database) as (world, counts):
        question = standing(world.store)
        question.adopt(await world.store.probe(READY, START, Probe("offered_to_some", ("default", AGENTS))))
        await told()
        counts.clear()
        await question.ask()
        question.forget()
        await question.ask()
        await told()
        assert counts["worker", "statements"] == (1 if world.store.has_stamps else 2)


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_store_has_stamps_if_it_says_so_and_none_when_it_is_closed(
    database: Database, is_open: bool
) -> None:
    store = database.store()
    if is_open:
        await store.open()
    assert (store.stamp() is not None) == (is_open and store.has_stamps)
    await store.close()
    assert store.stamp() is None
