"""What the publisher publishes in one run, and when it wants to run again."""

from __future__ import annotations

import math
from typing import Any

import pytest

from endwell.doorbell import EVERYTHING
from endwell.streams.orchestrator.publisher import (
    COUNT_LASTS_SECONDS,
    LONGEST_REST_SECONDS,
    LOOK_SOON_SECONDS,
    OfferPublisher,
)
from tests.streams.streamed import Streamed
from tests.support.world import Session, eventually

NO_LOOK_IS_DUE = 3600.0


class Publishing:
    """A publisher, and a worker with three slots that does nothing by itself."""

    def __init__(self, streamed: Streamed, publisher: OfferPublisher, worker: Session) -> None:
        self.streamed = streamed
        self.publisher = publisher
        self.worker = worker

    async def submit(self, count: int, agent: str = "clerk") -> None:
        for number in range(count):
            await self.streamed.world.submitted(agent, number)

    async def look(self) -> None:
        """Look for ready turns, and expect no other look for long."""
        await self.run(EVERYTHING)
        self.publisher._look_at = self._now + NO_LOOK_IS_DUE

    async def run(self, *topics: str) -> float:
        """Run once, with these topics rung; the seconds until the next run."""
        rung = {topic.format(self.streamed.world.namespace) for topic in topics}
        return await self.publisher.run_once(self._now, rung) - self._now

    @property
    def _now(self) -> float:
        return self.streamed.world.app.runtime.clock.monotonic()

    async def published(self) -> int:
        return len(await self.streamed.entries(self.streamed.names.task))

    async def finish_one(self, worker: Session, agent: str) -> None:
        (offer,) = await self.streamed.world.claimed(worker, agent)
        await worker.finish(offer)


@pytest.fixture
async def publishing(on_each_store: Streamed) -> Publishing:
    @on_each_store.app.agent("clerk")
    async def clerk(number: int) -> int:
        return number

    await on_each_store.world.registered("clerk")
    worker = await on_each_store.world.silent_session("clerk", concurrency=3)
    return Publishing(on_each_store, (await on_each_store.orchestrator()).publisher, worker)


async def test_first_run_looks_everywhere_and_rests_a_bounded_time(publishing: Publishing) -> None:
    await publishing.submit(2)
    assert 0 < await publishing.run() <= LONGEST_REST_SECONDS
    assert await publishing.published() == 2


async def test_run_without_a_ring_before_the_next_look_does_nothing(publishing: Publishing) -> None:
    await publishing.look()
    await publishing.submit(1)
    assert await publishing.run("ended:{}") > LONGEST_REST_SECONDS
    assert await publishing.published() == 0


async def test_agent_that_is_rung_is_published_without_a_look(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publishing.submit(1)
    await publishing.look()

    async def refuse(*_: Any) -> Any:
        raise AssertionError("there was no need to look")

    monkeypatch.setattr(publishing.publisher._probe, "ask", refuse)
    monkeypatch.setattr(publishing.streamed.world.store, "stream_demand", refuse)
    await publishing.submit(1)
    assert await publishing.run("work:{}:clerk") <= LOOK_SOON_SECONDS, "some turns may start a little later"
    assert await publishing.published() == 2


async def test_ring_is_followed_by_a_look_for_tasks_that_start_a_little_later(
    publishing: Publishing,
) -> None:
    await publishing.look()
    await publishing.streamed.world.submitted("clerk", 9, delay=4 * LOOK_SOON_SECONDS)
    await publishing.run("work:{}:clerk")

    async def is_published() -> bool:
        await publishing.run()
        return await publishing.published() == 1

    await eventually(is_published, "the delayed turn is published")


async def test_counted_room_is_given_away_once(publishing: Publishing) -> None:
    await publishing.submit(1)
    await publishing.look()
    await publishing.submit(4)
    publisher = publishing.publisher
    assert await publisher._publish_in_counted_room({"clerk"})
    assert (publisher.published, publisher._short) == (3, {"clerk"})
    assert not await publisher._publish_in_counted_room({"clerk"})
    assert publisher.published == 3


async def test_counted_room_expires(publishing: Publishing) -> None:
    await publishing.submit(1)
    await publishing.look()
    publishing.publisher._counted_at -= COUNT_LASTS_SECONDS + 0.1
    assert not await publishing.publisher._publish_in_counted_room({"clerk"})


async def test_agent_without_a_worker_has_no_room(publishing: Publishing) -> None:
    await publishing.submit(1)
    await publishing.look()
    assert not await publishing.publisher._publish_in_counted_room({"stranger"})


async def test_turn_that_ends_lets_a_waiting_offer_be_published(publishing: Publishing) -> None:
    await publishing.submit(4)
    await publishing.look()
    assert await publishing.published() == 3
    await publishing.finish_one(publishing.worker, "clerk")

    async def is_published() -> bool:
        await publishing.run("ended:{}")
        return await publishing.published() == 4

    await eventually(is_published, "the fourth turn is published")


async def test_agent_that_waits_for_room_is_remembered_when_another_is_rung(publishing: Publishing) -> None:
    world, publisher = publishing.streamed.world, publishing.publisher

    @world.app.agent("baker")
    async def baker(number: int) -> int:
        return number

    await world.registered("clerk", "baker")
    oven = await world.silent_session("baker", concurrency=1)
    await publishing.submit(2, "baker")
    await publishing.submit(1)
    await publishing.look()
    assert publisher._short == {"baker"}
    await publishing.submit(1)
    await publishing.run("work:{}:clerk")
    assert (publisher.published, publisher._short) == (3, {"baker"}), "it still waits"
    await publishing.finish_one(oven, "baker")
    await publisher._count_again()
    assert (publisher.published, publisher._short) == (4, {"baker"})


async def test_backlog_is_published_up_to_the_free_slots(publishing: Publishing) -> None:
    await publishing.submit(5)
    await publishing.look()
    assert await publishing.published() == 3


async def test_lost_entries_are_published_again_at_the_next_run(publishing: Publishing) -> None:
    await publishing.submit(2)
    await publishing.look()
    await publishing.streamed.redis.ask("DEL", publishing.streamed.names.task)
    publishing.publisher.forget_published()
    assert await publishing.run() < math.inf
    assert await publishing.published() == 2
