"""How every task ended is published on stream:result, once and after the commit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from endwell.model.moments import SECOND
from endwell.redis_client import Word
from endwell.store.log import Event
from endwell.streams.dead_letter_stream import ALL_THERE
from endwell.streams.orchestrator import result_publisher
from endwell.streams.orchestrator.result_publisher import ResultPublisher
from tests.patience import PATIENCE_SECONDS
from tests.streams.streamed import Streamed
from tests.support.world import eventually


async def published(streamed: Streamed) -> dict[str, dict[str, str]]:
    entries = await streamed.entries(streamed.names.result)
    return {fields["task_id"]: fields for _, fields in entries if fields.get("event_id")}


async def test_result_of_our_own_worker_is_published_once(
    on_each_store: Streamed,
) -> None:
    streamed = on_each_store
    world = streamed.world

    @world.app.agent("clerk", retries=0)
    async def clerk(order: int) -> int:
        if order < 0:
            raise ValueError("no such order")
        return 2 * order

    await streamed.supervised()
    await world.working()
    good, bad = await world.submitted("clerk", 21), await world.submitted("clerk", -1)
    assert await good.result(PATIENCE_SECONDS) == 42
    await world.in_status(bad, "failed")

    async def are_there() -> bool:
        return {good.id, bad.id} <= (await published(streamed)).keys()

    await eventually(are_there, "both results are on the stream")
    found = await published(streamed)
    assert (found[good.id]["status"], found[good.id]["output"]) == ("succeeded", "42")
    assert found[bad.id]["status"] == "failed"
    assert "no such order" in json.loads(found[bad.id]["error"])["message"]
    task = await good.task()
    assert found[good.id]["event_id"] == f"{good.id}.{task.version}"
    entries = await streamed.entries(streamed.names.result)
    assert len([1 for _, fields in entries if fields["task_id"] == good.id]) == 1


async def test_only_the_newest_published_results_are_kept(streamed: Streamed) -> None:
    streams = await streamed.orchestrator()
    await streams.results.run_once()  # from here on
    world = streamed.world

    @world.app.agent("clerk")
    async def clerk() -> None: ...

    await world.registered("clerk")
    handles = [await world.submitted("clerk") for _ in range(5)]
    for handle in handles:
        await handle.cancel()
    assert await streams.results.run_once() == 5
    assert await streams.results.run_once() == 0
    await streams.streams.trim_all(results_kept=3)
    assert len(await published(streamed)) == 5, "the orchestrators have yet to read them"
    await streams._read_reports_once()
    await streams.streams.trim_all(results_kept=3)
    assert list(await published(streamed)) == [handle.id for handle in handles[2:]]


async def test_orchestrator_that_was_frozen_publishes_no_result_twice(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two orchestrators read the same page of the log; the second finds that the cursor has moved."""
    streams = await streamed.orchestrator()
    await streams.results.run_once()  # from here on
    world = streamed.world
    frozen = ResultPublisher(world.store, streams.streams, namespace=world.namespace, kept=100)
    has_read, may_publish, usual = asyncio.Event(), asyncio.Event(), frozen._result_entries

    async def read_then_freeze(events: Sequence[Event]) -> list[Sequence[Word]]:
        entries = await usual(events)
        has_read.set()
        await may_publish.wait()
        return entries

    monkeypatch.setattr(frozen, "_result_entries", read_then_freeze)

    @world.app.agent("clerk")
    async def clerk() -> None: ...

    await world.registered("clerk")
    handles = [await world.submitted("clerk") for _ in range(5)]
    for handle in handles:
        await handle.cancel()
    late = asyncio.create_task(frozen.run_once())
    await has_read.wait()
    assert await streams.results.run_once() == 5
    may_publish.set()
    assert await late == 0
    assert len(await streamed.entries(streamed.names.result)) == 5


async def test_results_and_dead_letters_of_a_restored_store_are_published(on_each_store: Streamed) -> None:
    """The cursors beside the streams are those of the store that was lost, further on than the backup."""
    streamed = on_each_store
    world, names = streamed.world, streamed.names

    @world.app.agent("clerk", retries=0)
    async def clerk(is_bad: bool) -> None:
        if is_bad:
            raise ValueError("no such order")

    await world.working()
    bad = await world.submitted("clerk", True)
    await world.in_status(bad, "failed")
    await streamed.redis.ask("SET", names.results_cursor, await world.store.last_position() + 10**9)
    later = await world.store.now() + 3600 * SECOND
    await streamed.redis.ask("SET", names.dead_letters_cursor, later)
    await streamed.redis.ask("HSET", names.dead_letters, ALL_THERE, "")

    await streamed.supervised()
    good = await world.submitted("clerk", False)

    async def are_there() -> bool:
        letters = {letter["task_id"] for letter in await streamed.letters()}
        return good.id in await published(streamed) and bad.id in letters

    await eventually(are_there, "the result and the dead letter are on their streams")


@pytest.mark.parametrize("page", range(1, 9))
async def test_result_names_its_turn_when_a_page_of_the_log_ends_within_a_commit(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(result_publisher, "PAGE", page)
    streams = await streamed.orchestrator()
    await streams.results.run_once()  # from here on
    world = streamed.world

    @world.app.agent("clerk")
    async def clerk() -> None: ...

    await world.registered("clerk")
    session = await world.silent_session("clerk")
    for _ in range(3):
        await world.submitted("clerk")
    offers = [await world.claimed(session, "clerk") for _ in range(3)]
    for (offer,) in offers:
        await session.finish(offer)
    await streams.results.run_once()
    turns = {task_id: fields["turn"] for task_id, fields in (await published(streamed)).items()}
    assert turns == {offer.task.id: offer.task.turn_id for (offer,) in offers}


async def test_no_results_are_published_if_none_are_kept(streamed: Streamed) -> None:
    streams = await streamed.orchestrator()
    streams.results._kept = 0
    assert await streams.results.run_once() == 0
    assert await streamed.entries(streamed.names.result) == []


async def test_settings_are_published_for_foreign_workers(streamed: Streamed) -> None:
    await streamed.orchestrator()
    found = await streamed.redis.ask("HGETALL", streamed.names.settings)
    said = {found[n].decode(): found[n + 1].decode() for n in range(0, len(found), 2)}
    assert said == {"protocol": "1.1", "VISIBILITY_TIMEOUT_S": "60.0", "HEARTBEAT_INTERVAL_S": "0.2"}
