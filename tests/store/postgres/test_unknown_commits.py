"""A COMMIT whose answer was lost is looked up: it is neither lost nor done twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from endwell.errors import StaleAttempt
from endwell.model import commands as c
from endwell.store.postgres import connection
from tests.servers.proxy import Cut, Proxy
from tests.store.world import PostgresDatabase, World

COMMIT = b"COMMIT\0"
LOST: tuple[Cut, ...] = ("before", "after")


@pytest.fixture
async def proxy(postgres_database: PostgresDatabase) -> AsyncIterator[Proxy]:
    async with Proxy(postgres_database.url) as proxy:
        yield proxy


@pytest.fixture
async def world(proxy: Proxy) -> AsyncIterator[World]:
    """A world whose store speaks through the proxy."""
    world = World(PostgresDatabase(proxy.url))
    await world.open()
    yield world
    await world.close()


@pytest.mark.parametrize("cut", LOST)
async def test_a_submission_whose_answer_was_lost_is_one_task(world: World, proxy: Proxy, cut: Cut) -> None:
    trap = proxy.trap(b"the-needle", cut)
    reply = await world.reply(world.submit(payload=b'"the-needle"'))
    assert trap.sprung.is_set()
    assert reply.is_new
    assert await world.store.counts_by_status("default") == {"queued": 1}
    assert await world.task(reply.unwrap()) == reply.unwrap()
    assert await world.problems() == []


@pytest.mark.parametrize("cut", LOST)
async def test_a_finish_whose_answer_was_lost_happens_once(world: World, proxy: Proxy, cut: Cut) -> None:
    task = await world.running_task()
    trap = proxy.trap(b"the-needle", cut)
    done = await world.do(world.finish(task, b'"the-needle"'))
    assert trap.sprung.is_set()
    assert done.status == "succeeded"
    history = await world.history(task)
    assert history.count("task.succeeded") == 1
    assert "write.refused" not in history


@pytest.mark.parametrize("cut", LOST)
async def test_a_claim_whose_answer_was_lost_hands_out_what_it_took(
    world: World, proxy: Proxy, cut: Cut
) -> None:
    await world.open_session()
    await world.store.commit([world.submit() for _ in range(5)])
    trap = proxy.trap(COMMIT, cut)
    taken = await world.claimed(limit=3)
    assert trap.sprung.is_set()
    assert len(taken) == 3
    assert await world.store.load_of_sessions("default") == {"s1": 3}
    assert [await world.task(task) for task in taken] == taken


@pytest.mark.parametrize("cut", LOST)
async def test_a_whole_batch_whose_answer_was_lost_gets_the_right_replies(
    world: World, proxy: Proxy, cut: Cut
) -> None:
    mine, gone = await world.running_task(), await world.running_task()
    await world.do(world.to(c.Cancel, gone))
    waiting = await world.queued_task()
    trap = proxy.trap(COMMIT, cut)
    finished, refused, claimed, beat = await world.store.commit(
        [world.finish(mine), world.finish(gone), world.claim_next(), world.heartbeat(mine)]
    )
    assert trap.sprung.is_set()
    assert finished.unwrap().status == "succeeded"
    assert isinstance(refused.refusal, StaleAttempt)
    assert [offer.task.id for offer in claimed.taken] == [waiting.id]
    assert beat.stale == (mine.attempt_id,)
    assert (await world.history(gone)).count("write.refused") == 1


@pytest.mark.parametrize("cut", LOST)
async def test_a_heartbeat_whose_answer_was_lost_counts_once(world: World, proxy: Proxy, cut: Cut) -> None:
    task = await world.running_task()
    proxy.trap(COMMIT, cut)
    await world.store.commit_one(world.heartbeat())
    assert (await world.task(task)).status == "running"
    await world.store.commit_one(world.heartbeat())
    assert (await world.task(task)).status == "queued"


async def test_a_commit_without_an_answer_is_looked_up_after_a_timeout(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = World(PostgresDatabase(proxy.url))
    await first.open()  # making the schema may take longer
    await first.close()
    monkeypatch.setitem(connection.CONNECT_OPTIONS, "command_timeout", 1.0)
    world = World(PostgresDatabase(proxy.url))
    await world.open()
    trap = proxy.trap(b"the-needle", "silent")
    reply = await world.reply(world.submit(payload=b'"the-needle"'))
    assert trap.sprung.is_set()
    assert reply.is_new
    assert await world.store.counts_by_status("default") == {"queued": 1}
    await world.close()


async def test_connections_that_break_all_the_time_lose_nothing(world: World, proxy: Proxy) -> None:
    """Every submission is answered and stored once, at any moment the connection breaks."""
    dice = random.Random(7)
    replies = []
    for _ in range(25):
        commands = [world.submit() for _ in range(3)]
        commit = asyncio.create_task(world.store.commit(commands))
        await asyncio.sleep(dice.uniform(0, 0.004))
        proxy.cut_all()
        replies += await commit
    assert all(reply.is_new for reply in replies)
    assert await world.store.counts_by_status("default") == {"queued": 75}
    assert await world.problems() == []
