"""A worker and its doorbell: nothing depends on a ring, and no ring makes work happen twice."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from endwell.app import Node
from endwell.doorbell import Doorbell
from endwell.doorbell.contract import BellHealth
from endwell.doorbell.postgres import PostgresDoorbell
from endwell.runtime import Runtime, SystemClock
from endwell.worker.store_source import PendingClaim
from endwell.worker.worker import Worker
from tests.doorbell.contract import Ear
from tests.patience import PATIENCE_SECONDS
from tests.servers.proxy import Proxy
from tests.support.manual_clock import ManualClock
from tests.support.world import TINY, SilentBell, World, eventually, terminal


class DeafBell(SilentBell):
    """Loses every ring, and does not know it."""

    def health(self) -> BellHealth:
        return BellHealth(kind="deaf", connected=True)


async def with_bell(world: World, make_bell: Callable[[], Doorbell]) -> Node:
    """A node with a bell of the test's choice."""
    world.app.open_bell = make_bell  # type: ignore[method-assign]  # the test chooses
    return await world.another_node()


def echo(world: World) -> list[int]:
    """An agent that remembers what it was called with."""
    called: list[int] = []

    @world.app.agent("echo")
    async def run(number: int) -> int:
        called.append(number)
        return number

    return called


@dataclass(frozen=True, kw_only=True, slots=True)
class LeapingRuntime(Runtime):
    """Every wait ends at once and moves the clock; after `woken_after` seconds it was woken."""

    woken_after: float = math.inf

    async def wait(self, event: asyncio.Event, timeout: float | None = None) -> bool:
        seconds = min(math.inf if timeout is None else timeout, self.woken_after)
        if not event.is_set() and isinstance(self.clock, ManualClock):
            self.clock.advance(seconds)
            if seconds == self.woken_after:
                event.set()
        return event.is_set()


def leaping(worker: Worker, woken_after: float = math.inf) -> Worker:
    """The same worker; its rests take no time but the clock's."""
    usual = worker._runtime
    worker._runtime = LeapingRuntime(
        clock=usual.clock, ids=usual.ids, pool=usual.pool, woken_after=woken_after
    )
    return worker


async def until_it_takes_something(worker: Worker, clock: ManualClock) -> float:
    """How many seconds it took the worker, by the clock, to claim a task."""
    begin = clock.monotonic()
    while not await worker.run_once():
        await worker._wait_for_work()
    return clock.monotonic() - begin


@pytest.mark.covers("S0.3")
@pytest.mark.parametrize("bell", [SilentBell, DeafBell], ids=["known to be dead", "seems to work"])
@pytest.mark.parametrize("poll", [None, 1.0, 5.0])
@pytest.mark.parametrize("since", [0.01, 0.7])
async def test_with_every_ring_dropped_work_starts_late_by_at_most_the_poll_interval(
    store_url: str, bell: type[SilentBell], poll: float | None, since: float
) -> None:
    patient = {"worker.poll_seconds": poll, "worker.quiet_poll_seconds": None, "worker.lease_seconds": 600}
    async with World(store_url, settings=patient) as world:
        echo(world)
        is_dear = bell is DeafBell and store_url.startswith("postgresql")
        interval = max(poll or 1.0, 2.1 if is_dear else 0.0)  # also if the default is written down
        node = await with_bell(world, bell)
        worker = leaping(await world.started_worker(node))
        assert not await worker.run_once()
        await worker._wait_for_work()  # and looks at the end of it
        world.clock.advance(since * interval)
        await node.client.submit("echo", 7)
        late = await until_it_takes_something(worker, world.clock)
        assert late == pytest.approx((1 - since) * interval, abs=0.001)


async def test_a_wake_for_something_else_does_not_postpone_the_look(world: World) -> None:
    """Endings wake a worker, too: without this, a busy one would never look."""
    echo(world)
    node = await with_bell(world, DeafBell)
    worker = leaping(await world.started_worker(node))
    assert not await worker.run_once()
    await worker._wait_for_work()  # and looks at the end of it
    pace = worker._source.pace_seconds
    await node.client.submit("echo", 7)
    leaping(worker, woken_after=0.4 * pace)
    assert await until_it_takes_something(worker, world.clock) == pytest.approx(pace)


async def test_a_full_worker_neither_looks_nor_spins(world: World) -> None:
    echo(world)
    node = await with_bell(world, DeafBell)
    worker = leaping(await world.started_worker(node, concurrency=1))
    worker._claims["another"] = PendingClaim("another", worker._next_capacity(), limit=1)
    begin = world.clock.monotonic()
    for _ in range(3):
        await worker._wait_for_work()
    assert world.clock.monotonic() - begin >= 2 * world.app.settings.worker.poll_seconds


async def test_a_bell_that_loses_every_ring_unnoticed_only_delays_work(store_url: str) -> None:
    async with World(store_url, settings=TINY, clock=SystemClock()) as world:
        called = echo(world)
        node = await with_bell(world, DeafBell)
        await world.working(node)
        for number in range(3):  # each after the worker has gone to rest
            handle = await node.client.submit("echo", number)
            assert await handle.result(PATIENCE_SECONDS) == number
        late = await node.client.submit("echo", 3, delay=0.2)
        assert await late.result(PATIENCE_SECONDS) == 3
    assert called == [0, 1, 2, 3]


async def test_a_thousand_duplicated_rings_cause_one_turn(quick_world: World) -> None:
    world = quick_world
    called = echo(world)
    await world.working()
    other = await world.another_node()
    ring = [f"work:{world.namespace}:echo"]

    handle = await world.submitted("echo", 1)
    for _ in range(500):
        other.bell.ring(ring)
        world.node.bell.ring(ring)
    assert await handle.result(PATIENCE_SECONDS) == 1
    for _ in range(500):
        other.bell.ring(ring)
    last = await world.submitted("echo", 2)  # when this has ended, the rings before it have been heard
    assert await last.result(PATIENCE_SECONDS) == 2

    assert called == [1, 2]
    history = await world.history(handle)
    assert history.count("task.claimed") == 1
    assert len(terminal(history)) == 1


async def test_a_ring_arrives_only_after_its_task_is_visible(quick_world: World) -> None:
    world = quick_world
    echo(world)
    await world.registered("echo")
    other = await world.another_node()
    ear = Ear(other.bell)
    seen: list[int] = []
    for number in range(20):
        ear.calls.clear()
        submitting = world.app.runtime.spawn(world.submitted("echo", number), "submitting")
        await ear.wait_for(f"work:{world.namespace}:echo")
        seen.append(sum((await other.store.counts_by_status(world.namespace)).values()))
        await submitting
    assert seen == list(range(1, 21))


async def test_a_hanging_bell_does_not_delay_commits(shared_postgres_url: str) -> None:
    async with Proxy(shared_postgres_url) as proxy, World(shared_postgres_url, clock=SystemClock()) as world:
        called = echo(world)
        node = await with_bell(world, lambda: PostgresDoorbell(proxy.url, runtime=Runtime.system()))
        await world.working(node)
        proxy.black_hole()
        handles: list[Any] = [await node.client.submit("echo", number) for number in range(20)]
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(20))
        await eventually(lambda: not node.bell.health().connected, "the bell is known to hang")
        proxy.heal()
    assert sorted(called) == list(range(20))
