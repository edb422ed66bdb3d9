"""Reclaiming takes the entries of dead workers, and leaves those of live ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from endwell import AsyncHandle, Context
from endwell.runtime import SystemClock
from endwell.streams.orchestrator.service import StreamOrchestratorService
from endwell.streams.pending import entries_by_id, read_autoclaim_reply
from endwell.streams.protocol import WORKERS_GROUP
from tests.patience import PATIENCE_SECONDS
from tests.servers.small import ValkeyServer
from tests.streams.streamed import SETTINGS, Streamed
from tests.support.world import World, eventually


class OldServer(ValkeyServer):
    """It does not know XAUTOCLAIM, as a Redis before 6.2."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--rename-command", "XAUTOCLAIM", ""]


@pytest.fixture
def old_server() -> Iterator[OldServer]:
    server = OldServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def on_old_server(sqlite_url: str, old_server: OldServer) -> AsyncIterator[Streamed]:
    settings = {**SETTINGS, "redis.url": old_server.url}
    async with World(sqlite_url, settings=settings, clock=SystemClock()) as world:
        streamed = Streamed(world, old_server.url)
        yield streamed
        await streamed.redis.close()


async def left_by_a_dead_worker(
    streamed: Streamed, count: int = 1
) -> tuple[StreamOrchestratorService, list[AsyncHandle]]:
    """Tasks that run under a session whose lease is gone, their entries pending and old."""
    world = streamed.world

    @world.app.agent("clerk")
    async def clerk(payload: Any = None) -> str:
        return "done"

    await world.registered("clerk")
    session = await world.silent_session("clerk", concurrency=count, lease_seconds=0.05)
    await session.beat(lease_seconds=30)
    streams = await streamed.orchestrator()
    handles = await world.client.submit_many("clerk", range(count))
    while await streams.publisher.publish_ready():
        pass
    read = await streamed.read("dead-1", count)
    assert len(await world.claimed(session, "clerk", count)) == count
    await world.sql("UPDATE sessions SET lease_until = 1 WHERE id = ?", session.id)
    await streamed.grown_old("dead-1", *(message_id for message_id, _ in read))
    return streams, handles


def listened(streams: StreamOrchestratorService) -> Counter[str]:
    """How often each command is sent about pending entries from now on."""
    counts: Counter[str] = Counter()
    redis = streams.streams.redis
    usual = redis.ask

    async def ask(*words: Any) -> Any:
        counts[words[0]] += 1
        return await usual(*words)

    redis.ask = ask  # type: ignore[method-assign]  # the test listens
    return counts


@pytest.mark.covers("S4.18", "S4.21", "S4.22", "S4.25", "S4.26", "S4.27", "S4.28", "T17")
async def test_all_entries_of_a_dead_worker_are_reclaimed_beyond_the_first_page(streamed: Streamed) -> None:
    streams, handles = await left_by_a_dead_worker(streamed, 250)
    asked = listened(streams)
    assert await streams.reclaimer.run_once() == 250
    assert asked["XAUTOCLAIM"] >= 3, "a hundred at a time"
    assert asked["XCLAIM"] == 0
    for handle in handles[:: len(handles) - 1]:
        (fact,) = await streamed.world.facts(handle, "task.reclaimed")
        assert fact.old_consumer == "dead-1"
        assert fact.new_consumer == streams.consumer
        assert "-" in fact.message_id
    assert await streamed.world.counts() == {"queued": 250}
    assert await streamed.pending() == []
    assert await streamed.entries(streamed.names.task) == []


@pytest.mark.covers("S4.23")
async def test_server_without_xautoclaim_is_asked_by_xpending_and_xclaim(on_old_server: Streamed) -> None:
    streams, (handle,) = await left_by_a_dead_worker(on_old_server)
    asked = listened(streams)
    assert await streams.reclaimer.run_once() == 1
    assert asked["XPENDING"] >= 1
    assert asked["XCLAIM"] == 1
    (fact,) = await on_old_server.world.facts(handle, "task.reclaimed")
    assert fact.old_consumer == "dead-1"
    await on_old_server.world.working()
    await on_old_server.supervised()
    assert await handle.result(PATIENCE_SECONDS) == "done"
    await on_old_server.nothing_pending()


@pytest.mark.covers("S4.24")
async def test_only_overdue_entries_are_reclaimed(streamed: Streamed) -> None:
    streams, handles = await left_by_a_dead_worker(streamed, 2)
    (first, _, _), (second, _, _) = await streamed.pending()
    await streamed.grown_old("dead-1", first, seconds=59)  # of 60
    await streamed.grown_old("dead-1", second, seconds=61)
    assert await streams.reclaimer.run_once() == 1
    assert [each for each, _, _ in await streamed.pending()] == [first]
    counts = await streamed.world.counts()
    assert counts == {"running": 1, "queued": 1}
    await streamed.grown_old("dead-1", first, seconds=61)
    assert await streams.reclaimer.run_once() == 1, "its own time has come, and the other one is back"
    assert [await handle.status() for handle in handles] == ["queued", "queued"]


async def test_overdue_entry_of_a_live_holder_goes_back_to_it(streamed: Streamed) -> None:
    """A worker whose heartbeats on the stream are lost keeps its turn: its lease is in the store."""
    streams, (handle,) = await left_by_a_dead_worker(streamed)
    await streamed.world.sql("UPDATE sessions SET lease_until = 99999999999999999")
    assert await streams.reclaimer.run_once() == 0
    ((_, consumer, deliveries),) = await streamed.pending()
    assert consumer == "dead-1"
    assert (await handle.task()).status == "running"
    assert await streams.reclaimer.run_once() == 0, "it is fresh again"
    assert deliveries < 5


async def test_entry_deleted_while_pending_is_acknowledged(streamed: Streamed) -> None:
    streams, (handle,) = await left_by_a_dead_worker(streamed)
    ((message_id, _, _),) = await streamed.pending()
    await streamed.redis.ask("XDEL", streamed.names.task, message_id)
    await streams.reclaimer.run_once()
    assert await streamed.pending() == []
    assert (await handle.task()).status == "running", "for its turn the store's own supervisor sees"


async def test_deleted_entry_is_acknowledged_on_a_server_without_xautoclaim(
    on_old_server: Streamed,
) -> None:
    streams, _ = await left_by_a_dead_worker(on_old_server)
    ((message_id, _, _),) = await on_old_server.pending()
    await on_old_server.redis.ask("XDEL", on_old_server.names.task, message_id)
    await streams.reclaimer.run_once()
    assert await on_old_server.pending() == []


def test_both_forms_of_the_xautoclaim_answer_are_read() -> None:
    entry = [b"1-1", [b"a", b"b"]]
    assert read_autoclaim_reply([b"0-0", [entry]]) == ("0-0", {"1-1": [b"a", b"b"]})
    assert read_autoclaim_reply([b"5-0", [entry, None], [b"2-1"]]) == (
        "5-0",
        {"1-1": [b"a", b"b"], "2-1": None},
    )
    assert entries_by_id([entry, None, [b"3-1", None]]) == {"1-1": [b"a", b"b"], "3-1": None}
    assert entries_by_id(None) == {}


@pytest.mark.covers("S4.16", "S4.17")
async def test_step_longer_than_the_visibility_timeout_stays_with_a_healthy_worker(
    sqlite_url: str, redis_url: str
) -> None:
    quick = {"queue.VISIBILITY_TIMEOUT_S": 30.0, "queue.HEARTBEAT_INTERVAL_S": 0.1, "redis.url": redis_url}
    async with World(sqlite_url, settings={**SETTINGS, **quick}, clock=SystemClock()) as world:
        streamed, gate = Streamed(world, redis_url), asyncio.Event()

        @world.app.agent("clerk")
        async def clerk(ctx: Context) -> str:
            for percent in range(0, 100, 10):
                await ctx.progress(f"{percent} %")
            await gate.wait()
            return "done"

        await world.working()
        pmo = await streamed.supervised()
        handle = await world.submitted("clerk")

        async def has_told() -> bool:
            return (await world.history(handle)).count("task.heartbeat") >= 1

        await eventually(has_told, "its progress is in the log")
        ((message_id, consumer, _),) = await streamed.pending()
        assert pmo.streams is not None
        # nine tenths of the timeout, again and again: only touching the entry keeps it from being taken
        for _ in range(5):
            await streamed.grown_old(consumer, message_id, seconds=27.0)

            async def is_fresh() -> bool:
                words = ("XPENDING", streamed.names.task, WORKERS_GROUP, "-", "+", 1)
                return int((await streamed.redis.ask(*words))[0][2]) < 15_000

            await eventually(is_fresh, "the worker has touched its entry")
        assert len(await streamed.entries(streamed.names.task)) == 1
        assert await streamed.entries(streamed.names.result) == []
        gate.set()
        assert await handle.result(PATIENCE_SECONDS) == "done"
        assert "task.reclaimed" not in await world.history(handle)
        await streamed.nothing_pending()
        await streamed.remove_all()


async def test_silent_consumers_without_entries_are_deleted(streamed: Streamed) -> None:
    streams, _ = await left_by_a_dead_worker(streamed)
    names = {name for name, _, _ in await streams.streams.tasks.list_consumers()}
    assert names == {b"dead-1"}
    await streams._delete_silent_consumers()
    assert {name for name, _, _ in await streams.streams.tasks.list_consumers()} == {b"dead-1"}, (
        "it has something"
    )
    await streams.reclaimer.run_once()
    await streams._delete_silent_consumers()
    assert b"dead-1" in {name for name, _, _ in await streams.streams.tasks.list_consumers()}, (
        "it may still come back"
    )
    streams._silent_ms = 0
    await streams._delete_silent_consumers()
    assert b"dead-1" not in {name for name, _, _ in await streams.streams.tasks.list_consumers()}
