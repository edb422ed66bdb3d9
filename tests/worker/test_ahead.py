"""Turns that are taken ahead of their slots: while turns are quick, run within the slots, and not kept."""

from __future__ import annotations

import asyncio

import pytest

from endwell import AsyncHandle
from endwell.turn.turns import LONGEST_WAIT_SECONDS
from endwell.worker.capacity import AHEAD_SECONDS, Capacity
from endwell.worker.worker import Worker
from tests.support.world import World, eventually


class Counter:
    """A counter with two slots, where everybody waits to be let go; `most` is how many there were at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.inside: dict[int, asyncio.Event] = {}
        self.most = 0
        self.worker: Worker

        @world.app.agent("clerk")
        async def clerk(number: int) -> int:
            self.inside[number] = asyncio.Event()
            self.most = max(self.most, len(self.inside))
            await self.inside[number].wait()
            del self.inside[number]
            return number

    async def opened(self, count: int, *, ended_before: int) -> list[AsyncHandle]:
        """So many tasks wait for a worker at whose counter so many have just ended."""
        await self.world.registered("clerk")
        handles = [await self.world.submitted("clerk", number) for number in range(count)]
        self.worker = await self.world.started_worker(concurrency=2)
        self.worker._capacity.ended(ended_before)
        await self.worker.run_once()
        await self.busy_with(0, 1)
        return handles

    async def busy_with(self, *numbers: int) -> None:
        await eventually(lambda: set(self.inside) == set(numbers), f"{numbers} are served")

    async def statuses(self, handles: list[AsyncHandle]) -> list[str]:
        return [(await handle.task()).status for handle in handles]


QUICK = int(2 / AHEAD_SECONDS)
"""So many in a second are two within the time for which turns are taken ahead."""


@pytest.fixture
def counter(world: World) -> Counter:
    return Counter(world)


async def test_at_a_slow_pace_a_worker_takes_as_many_as_it_has_slots(counter: Counter) -> None:
    handles = await counter.opened(5, ended_before=10)
    assert await counter.statuses(handles) == ["running"] * 2 + ["queued"] * 3


async def test_at_a_high_pace_it_takes_more_and_runs_as_many_as_it_has_slots(counter: Counter) -> None:
    handles = await counter.opened(5, ended_before=QUICK)
    assert await counter.statuses(handles) == ["running"] * 4 + ["queued"]
    counter.inside[0].set()
    await counter.busy_with(1, 2)
    counter.inside[2].set()
    await counter.busy_with(1, 3)
    assert counter.most == 2


async def test_the_heartbeat_names_what_waits_for_a_slot(counter: Counter) -> None:
    handles = await counter.opened(4, ended_before=QUICK)
    held = {task_id for task_id, _ in counter.worker._named().attempts}
    assert held == {handle.id for handle in handles}


async def test_who_waits_for_a_slot_for_too_long_is_handed_back_and_not_taken_again(counter: Counter) -> None:
    handles = await counter.opened(4, ended_before=QUICK)
    counter.world.clock.advance(LONGEST_WAIT_SECONDS - 0.1)
    await counter.worker.run_once()
    assert await counter.statuses(handles) == ["running"] * 4
    assert counter.worker._turns.seconds_to_hand_back == pytest.approx(0.1)
    counter.world.clock.advance(0.2)
    await counter.worker.run_once()
    await counter.worker.run_once()
    assert await counter.statuses(handles) == ["running"] * 2 + ["queued"] * 2
    assert "task.handed_back" in await counter.world.history(handles[3])
    assert (await handles[3].task()).retry_count == 0
    for event in list(counter.inside.values()):
        event.set()
    await counter.busy_with()

    async def are_served() -> bool:
        await counter.worker.run_once()
        return set(counter.inside) == {2, 3}

    await eventually(are_served, "the others are served")


async def test_a_worker_that_stops_hands_back_at_once_what_waits_for_a_slot(counter: Counter) -> None:
    handles = await counter.opened(4, ended_before=QUICK)
    counter.worker.stop()
    draining = asyncio.create_task(counter.worker._drain())

    async def are_back() -> bool:
        return await counter.statuses(handles) == ["running"] * 2 + ["queued"] * 2

    await eventually(are_back, "two are handed back while two are finished")
    for event in list(counter.inside.values()):
        event.set()
    await draining
    assert counter.most == 2


async def test_what_is_lost_while_it_waits_for_a_slot_never_starts(counter: Counter) -> None:
    handles = await counter.opened(4, ended_before=QUICK)
    lost = await handles[2].task()
    counter.worker._let_go((lost.attempt_id or "",))
    counter.inside[0].set()
    await counter.busy_with(1, 3)
    assert counter.worker._turns.count == 2


def test_never_more_than_one_turn_waits_for_each_slot(world: World) -> None:
    capacity = Capacity(2, world.clock)
    capacity.ended(1_000_000)
    assert capacity.most == 4
    world.clock.advance(1.1)
    assert capacity.most == 2
