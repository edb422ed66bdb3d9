"""What a worker makes of its doorbell: nothing depends on it, and nothing is done twice because of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from endwell.app import Node
from endwell.doorbell import Doorbell
from endwell.doorbell.contract import BellHealth
from endwell.doorbell.postgres import PostgresDoorbell
from endwell.runtime import Runtime, SystemClock
from endwell.worker.lookout import DISTRUST_SECONDS, RARELY
from tests.doorbell.contract import Ear
from tests.execution.world import TINY, SilentBell, World, eventually, terminal
from tests.servers.proxy import Proxy


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


@pytest.mark.covers("S0.3")
async def test_with_a_dead_bell_the_worker_looks_once_per_poll_interval(world: World) -> None:
    echo(world)
    node = await with_bell(world, SilentBell)
    worker = await world.started_worker(node)
    assert not await worker.run_once()
    handle = await node.client.submit("echo", 7)
    assert not await worker.run_once(), "nobody has told it"
    assert worker._poll_seconds == world.app.settings.worker.poll_seconds
    await worker._rest()
    assert await worker.run_once()
    assert (await handle.task()).status in ("running", "succeeded")


async def test_a_working_bell_makes_polls_rare(world: World) -> None:
    echo(world)
    worker = await world.started_worker()
    await eventually(lambda: world.node.bell.health().connected)
    assert worker._poll_seconds == RARELY * world.app.settings.worker.poll_seconds


@pytest.mark.covers("S0.3")
async def test_after_one_lost_ring_a_bell_is_not_relied_on_until_it_rings(world: World) -> None:
    echo(world)
    node = await with_bell(world, DeafBell)
    worker = await world.started_worker(node)
    usual, poll = worker._poll_seconds, world.app.settings.worker.poll_seconds
    assert (usual, await worker.run_once()) == (RARELY * poll, False)
    await node.client.submit("echo", 7)
    assert not await worker.run_once(), "nobody has told it"
    await worker.watch.run_once()  # looks anyway, once per tick
    assert await worker.run_once()
    assert worker._poll_seconds == poll, "from now on it looks as with a dead bell"

    worker._heard(frozenset({f"work:{world.namespace}:echo"}))
    assert worker._poll_seconds == usual, "it rings after all"

    await node.client.submit("echo", 8)
    worker._may_be_work = False  # the ring of a moment ago has been seen to
    await worker.watch.run_once()
    assert await worker.run_once()
    world.clock.advance(DISTRUST_SECONDS - 1)
    assert worker._poll_seconds == poll
    world.clock.advance(1)
    assert worker._poll_seconds == usual, "nothing was lost for long"


async def test_a_look_that_finds_what_cannot_be_taken_says_nothing_of_the_bell(world: World) -> None:
    @world.app.agent("single", concurrency=1)
    async def single() -> None: ...

    await world.registered("single")
    await world.submitted("single")
    await world.claimed(await world.silent_session("single"), "single")
    node = await with_bell(world, DeafBell)
    await node.client.submit("single")
    worker = await world.started_worker(node)
    await worker.watch.run_once()
    assert not await worker.run_once()
    assert worker._poll_seconds == RARELY * world.app.settings.worker.poll_seconds


async def test_a_bell_that_loses_everything_and_does_not_know_it_only_delays(store_url: str) -> None:
    async with World(store_url, settings=TINY, clock=SystemClock()) as world:
        called = echo(world)
        node = await with_bell(world, DeafBell)
        await world.working(node)
        for number in range(3):  # each after the worker has gone to rest
            handle = await node.client.submit("echo", number)
            assert await handle.result(20) == number
        late = await node.client.submit("echo", 3, delay=0.2)
        assert await late.result(20) == 3
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
    assert await handle.result(20) == 1
    for _ in range(500):
        other.bell.ring(ring)
    last = await world.submitted("echo", 2)  # when this has ended, the rings before it have been heard
    assert await last.result(20) == 2

    assert called == [1, 2]
    history = await world.history(handle)
    assert history.count("task.claimed") == 1
    assert len(terminal(history)) == 1


async def test_a_ring_is_heard_only_after_its_task_can_be_seen(quick_world: World) -> None:
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
        seen.append(sum((await other.store.counts(world.namespace)).values()))
        await submitting
    assert seen == list(range(1, 21))


async def test_a_bell_that_hangs_holds_up_no_commit(shared_postgres_url: str) -> None:
    async with Proxy(shared_postgres_url) as proxy, World(shared_postgres_url, clock=SystemClock()) as world:
        called = echo(world)
        node = await with_bell(world, lambda: PostgresDoorbell(proxy.url, runtime=Runtime.system()))
        await world.working(node)
        proxy.black_hole()
        handles: list[Any] = [await node.client.submit("echo", number) for number in range(20)]
        assert [await handle.result(20) for handle in handles] == list(range(20))
        await eventually(lambda: not node.bell.health().connected, "the bell is known to hang")
        proxy.heal()
    assert sorted(called) == list(range(20))
