"""How the stream is fed: for what is rung at once, in room that was counted, and never beyond it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from endwell.streams.orchestrator import publisher as publishing
from endwell.streams.orchestrator.publisher import COUNT_LASTS_SECONDS, LOOK_SOON_SECONDS
from endwell.streams.orchestrator.service import StreamOrchestratorService
from tests.streams.streamed import Streamed
from tests.support.world import Session, eventually


class Office:
    """An orchestrator and a worker with a few slots that does nothing by itself."""

    def __init__(self, streamed: Streamed, orchestrator: StreamOrchestratorService, worker: Session) -> None:
        self.streamed = streamed
        self.streams = orchestrator
        self.worker = worker

    async def submit(self, count: int) -> None:
        for number in range(count):
            await self.streamed.world.submitted("clerk", number)

    def ring(self, topic: str) -> None:
        self.streams._on_ring(frozenset({topic.format(self.streamed.world.namespace)}))

    async def on_the_stream(self, count: int) -> None:
        async def are_there() -> bool:
            return len(await self.streamed.entries(self.streamed.names.task)) == count

        await eventually(are_there, f"{count} turns are on the stream")

    @contextlib.asynccontextmanager
    async def fed(self) -> AsyncIterator[None]:
        """While its loop runs."""
        run = self.streams._run_repeatedly(self.streams._publish_once)
        loop = asyncio.get_running_loop().create_task(run)
        try:
            yield
        finally:
            loop.cancel()


@pytest.fixture
async def office(on_each_store: Streamed) -> Office:
    @on_each_store.app.agent("clerk")
    async def clerk(number: int) -> int:
        return number

    await on_each_store.world.registered("clerk")
    worker = await on_each_store.world.silent_session("clerk", concurrency=3)
    orchestrator = await on_each_store.orchestrator()
    orchestrator._rung.clear()  # a new leader looks everywhere; the tests do so themselves
    return Office(on_each_store, orchestrator, worker)


async def test_what_is_rung_for_is_offered_without_another_look(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.submit(1)
    await office.streams.publisher._look_everywhere()
    looks = list[str]()

    async def noted(*_: Any) -> Any:
        looks.append("a look")
        raise AssertionError("there was no need to look")

    monkeypatch.setattr(office.streams.publisher._probe, "ask", noted)
    monkeypatch.setattr(office.streams._store, "stream_demand", noted)
    monkeypatch.setattr(publishing, "LOOK_SOON_SECONDS", 3600)
    office.streams.publisher._look_at += 3600  # no look is due for long
    await office.submit(1)
    office.ring("work:{}:clerk")
    async with office.fed():
        await office.on_the_stream(2)
    assert looks == []


async def test_room_that_was_counted_is_given_away_once(office: Office) -> None:
    await office.submit(1)
    await office.streams.publisher._look_everywhere()
    await office.submit(4)
    publisher = office.streams.publisher
    assert await publisher._publish_in_counted_room({"clerk"})
    assert (publisher.published, publisher._short) == (3, {"clerk"})
    assert not await publisher._publish_in_counted_room({"clerk"})
    assert publisher.published == 3


async def test_a_count_of_the_room_grows_old(office: Office) -> None:
    await office.submit(1)
    await office.streams.publisher._look_everywhere()
    office.streams.publisher._counted_at -= COUNT_LASTS_SECONDS + 0.1
    assert not await office.streams.publisher._publish_in_counted_room({"clerk"})


async def test_an_agent_that_no_worker_serves_is_not_offered_to_anybody(office: Office) -> None:
    await office.submit(1)
    await office.streams.publisher._look_everywhere()
    assert not await office.streams.publisher._publish_in_counted_room({"stranger"})


async def test_what_waits_for_room_is_offered_when_a_turn_ends(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        office.streams.publisher, "_rest_seconds", lambda _: 3600.0
    )  # no look is due for long
    await office.submit(4)
    async with office.fed():
        await office.on_the_stream(3)
        (offer,) = await office.streamed.world.claimed(office.worker, "clerk")
        await office.worker.finish(offer)
        office.ring("ended:{}")
        await office.on_the_stream(4)


async def test_who_waits_for_room_is_not_forgotten_when_another_agent_is_rung_for(office: Office) -> None:
    world, publisher = office.streamed.world, office.streams.publisher

    @world.app.agent("baker")
    async def baker(number: int) -> int:
        return number

    await world.registered("clerk", "baker")
    oven = await world.silent_session("baker", concurrency=1)
    for number in range(2):
        await world.submitted("baker", number)
    await office.submit(1)
    await office.streams.publisher._look_everywhere()
    assert publisher._short == {"baker"}
    await office.submit(1)
    assert await publisher._publish_in_counted_room({"clerk"})
    assert publisher._short == {"baker"}, "it still waits"
    (offer,) = await world.claimed(oven, "baker")
    await oven.finish(offer)
    await office.streams.publisher._count_again()
    assert (publisher.published, publisher._short) == (4, {"baker"})


async def test_a_backlog_is_offered_in_all_the_room_that_there_is(office: Office) -> None:
    await office.submit(2)
    async with office.fed():
        await office.on_the_stream(2)
        await office.submit(5)
        office.ring("work:{}:clerk")
        await office.on_the_stream(3)


async def test_after_a_ring_one_looks_soon_for_what_starts_a_little_later(office: Office) -> None:
    await office.submit(1)
    async with office.fed():
        await office.on_the_stream(1)
        office.streams.publisher._look_at += 3600  # no look is due for long
        await office.submit(1)
        await office.streamed.world.submitted("clerk", 9, delay=4 * LOOK_SOON_SECONDS)
        office.ring("work:{}:clerk")
        await office.on_the_stream(3)
