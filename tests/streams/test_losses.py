"""A Redis server that loses its data, restarts or disappears: no task is lost, and none runs twice."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from endwell.runtime import SystemClock
from endwell.streams import consumer_group
from tests.patience import PATIENCE_SECONDS
from tests.servers.proxy import Proxy
from tests.servers.small import ValkeyServer
from tests.streams.streamed import SETTINGS, Streamed, intake_of
from tests.support.world import World, eventually, terminal


@pytest.fixture
async def alone(sqlite_url: str, own_valkey: ValkeyServer) -> AsyncIterator[Streamed]:
    """With a server of its own."""
    settings = {**SETTINGS, "redis.url": own_valkey.url, "pmo.dispatched_retry_seconds": 0.5}
    async with World(sqlite_url, settings=settings, clock=SystemClock()) as world:
        streamed = Streamed(world, own_valkey.url)
        yield streamed
        await streamed.redis.close()


def counting(streamed: Streamed) -> Counter[int]:
    """An agent that counts how often it did each number."""
    done: Counter[int] = Counter()

    @streamed.world.app.agent("clerk")
    async def clerk(number: int) -> int:
        done[number] += 1
        await asyncio.sleep(0.01)
        return number

    return done


@pytest.mark.covers("S4.12", "S4.13")
async def test_repeated_flushes_of_the_server_lose_no_task_and_run_none_twice(alone: Streamed) -> None:
    done = counting(alone)
    await alone.world.working(concurrency=4)
    await alone.world.working(await alone.world.another_node(), concurrency=4, name="other")
    await alone.supervised()
    handles = await alone.world.client.submit_many("clerk", range(60))
    for share in (10, 20, 30, 40, 50):

        async def is_so_far(share: int = share) -> bool:
            return len(done) >= share

        await eventually(is_so_far, f"{share} are done")
        await alone.redis.ask("FLUSHALL")
    assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(60))
    assert set(done.values()) == {1}
    for handle in handles:
        assert terminal(await alone.world.history(handle)) == ["task.succeeded"]
        assert (await handle.task()).retry_count == 0
    await alone.nothing_pending()


async def test_offer_whose_entry_was_trimmed_away_is_published_again(alone: Streamed) -> None:
    counting(alone)
    await alone.world.registered("clerk")
    await alone.world.silent_session("clerk", concurrency=2)
    streams = await alone.orchestrator()
    handles = await alone.world.client.submit_many("clerk", range(2))
    assert await streams.publisher.publish_ready() == 2
    assert await streams.publisher.republish_unclaimed() == 0, "they are there"
    await alone.redis.ask("XTRIM", alone.names.task, "MAXLEN", 0)
    streams.publisher._again_seconds = 0.0
    assert await streams.publisher.republish_unclaimed() == 2
    turns = {fields["turn"] for _, fields in await alone.entries(alone.names.task)}
    assert turns == {(await handle.task()).turn_id for handle in handles}
    assert (await handles[0].task()).dispatch_count == 1, "it is the same offer"


async def test_server_that_comes_back_empty_gets_groups_offers_and_dead_letters_again(
    alone: Streamed, own_valkey: ValkeyServer
) -> None:
    counting(alone)
    await alone.world.registered("clerk")
    await alone.world.silent_session("clerk", concurrency=1)
    streams = await alone.orchestrator()
    dead = await alone.world.submitted("clerk", 1)
    await alone.world.sql("UPDATE tasks SET ends_by = 1, clock_at = 1 WHERE id = ?", dead.id)
    await alone.world.node.pmo().watchdog.run_once()
    live = await alone.world.submitted("clerk", 2)
    await streams.publisher.publish_ready()
    await streams.dead_letters.run_once()
    assert [letter["task_id"] for letter in await alone.letters()] == [dead.id]
    await streams.dead_letters.run_once()
    assert len(await alone.letters()) == 1, "it is published once"
    await alone.redis.ask("FLUSHALL")
    streams._led_at = float("-inf")
    assert await streams.is_leading()
    await streams.keep_up()
    await streams.publisher._look_everywhere()
    assert [letter["task_id"] for letter in await alone.letters()] == [dead.id]
    ((_, fields),) = await alone.read("reader")
    assert fields["task_id"] == live.id


async def test_workers_claim_from_the_store_while_the_server_is_away(
    alone: Streamed, own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    done = counting(alone)
    worker = await alone.world.working(concurrency=4)
    pmo = await alone.supervised()
    first = await alone.world.client.submit_many("clerk", range(5))
    assert [await handle.result(PATIENCE_SECONDS) for handle in first] == list(range(5))
    await asyncio.to_thread(own_valkey.kill)
    second = await alone.world.client.submit_many("clerk", range(5, 25))
    assert [await handle.result(PATIENCE_SECONDS) for handle in second] == list(range(5, 25))
    assert pmo.streams is not None
    assert not intake_of(worker).is_up
    assert pmo.streams.failures + intake_of(worker).failures < 200
    await asyncio.to_thread(own_valkey.start)
    await eventually(lambda: intake_of(worker).is_up, "the stream is back")
    third = await alone.world.client.submit_many("clerk", range(25, 35))
    assert [await handle.result(PATIENCE_SECONDS) for handle in third] == list(range(25, 35))
    assert set(done.values()) == {1}
    await alone.nothing_pending()
    told = [
        r.message for r in caplog.records if "no task stream" in r.message and r.levelno == logging.WARNING
    ]
    assert 1 <= len(told) <= 10


async def test_worker_notices_a_server_that_no_longer_answers(
    sqlite_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_group, "ANSWER_SECONDS", 0.5)
    async with Proxy(redis_url) as proxy:
        settings = {**SETTINGS, "redis.url": proxy.url, "redis.block_seconds": 0.3}
        async with World(sqlite_url, settings=settings, clock=SystemClock()) as world:
            streamed = Streamed(world, redis_url)
            done = counting(streamed)
            worker = await world.working(concurrency=4)
            await streamed.supervised()
            assert await (await world.submitted("clerk", 1)).result(PATIENCE_SECONDS) == 1
            proxy.black_hole()
            assert await (await world.submitted("clerk", 2)).result(PATIENCE_SECONDS) == 2
            proxy.cut_all()
            proxy.heal()
            await eventually(lambda: intake_of(worker).is_up, "it is back")
            assert await (await world.submitted("clerk", 3)).result(PATIENCE_SECONDS) == 3
            assert set(done.values()) == {1}
            await streamed.remove_all()


async def test_start_warns_of_a_server_that_may_evict_streams(
    alone: Streamed, caplog: pytest.LogCaptureFixture
) -> None:
    await alone.redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await alone.orchestrator()
    assert "allkeys-lru" in caplog.text
    assert "noeviction" in caplog.text


async def test_streams_are_trimmed_to_what_is_needed(streamed: Streamed) -> None:
    counting(streamed)
    await streamed.world.registered("clerk")
    await streamed.world.silent_session("clerk", concurrency=5)
    streams = await streamed.orchestrator()
    await streamed.world.client.submit_many("clerk", range(5))
    await streams.publisher.publish_ready()
    read = [message_id for message_id, _ in await streamed.read("reader", 4)]
    await streamed.redis.ask("XACK", streamed.names.task, "cg:workers", *read[:2])  # a foreign worker's way
    await streams.streams.trim_all(results_kept=0)
    left = [message_id for message_id, _ in await streamed.entries(streamed.names.task)]
    assert len(left) == 3
    assert left[:2] == read[2:], "what is pending or unread stays"
    await streamed.redis.ask("XACK", streamed.names.task, "cg:workers", *read[2:])
    await streams.streams.trim_all(results_kept=0)
    unread = [message_id for message_id, _ in await streamed.entries(streamed.names.task)]
    assert unread == left[2:], "the last that was acknowledged goes too"


async def test_second_orchestrator_publishes_when_the_first_has_gone(streamed: Streamed) -> None:
    first = await streamed.orchestrator()
    pmo = streamed.world.node.pmo(name="second")
    assert pmo.streams is not None
    assert not await pmo.streams.is_leading()
    await first.close()
    pmo.streams._led_at = float("-inf")
    assert await pmo.streams.is_leading()
    await pmo.streams.close()
