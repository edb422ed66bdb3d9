"""How a worker finds work that no ring announced: it looks, and that costs nothing while nothing changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from endwell.app import Node
from endwell.model.moments import SECOND
from endwell.runtime import SystemClock
from endwell.store.probe import Probe, ProbeResult
from endwell.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.support.worker_process import app_for, started
from tests.support.world import SilentBell, World, eventually
from tests.worker.test_bells import DeafBell, echo, leaping, until_it_takes_something, with_bell

DEFAULTS: dict[str, object | None] = {
    "worker.poll_seconds": None,
    "worker.quiet_poll_seconds": None,
    "worker.heartbeat_seconds": 200,
    "worker.lease_seconds": 600,
    "worker.watchdog_interval_seconds": 600,
}
"""Looks as by default, and no other process that would find the work by chance."""
OTHERWISE_SECONDS = 200
"""A heartbeat or a watchdog would find the work by then; a slow machine does not need so long."""


class Asked:
    """A node whose worker's looks are counted, as far as they ask the store something."""

    def __init__(self, node: Node) -> None:
        self.count = 0
        self._glance = node.store.probe
        node.store.probe = self.probe  # type: ignore[method-assign]  # counted

    async def probe(self, *asked: Probe) -> ProbeResult:
        self.count += 1
        return await self._glance(*asked)


@pytest.fixture
async def world(sqlite_url: str) -> AsyncIterator[World]:
    async with World(sqlite_url, settings=DEFAULTS) as world:
        echo(world)
        yield world


async def resting(world: World) -> tuple[Worker, Asked]:
    """A worker with a deaf bell that has found nothing to do."""
    node = await with_bell(world, DeafBell)
    worker = leaping(await world.started_worker(node))
    assert worker._session._heartbeat is not None
    await worker._session._heartbeat.stop()  # a heartbeat is a commit as well
    assert not await worker.run_once()
    await worker._wait_for_work()
    return worker, Asked(node)


async def test_looks_at_an_unchanged_file_send_no_statement(world: World) -> None:
    worker, asked = await resting(world)
    begin = world.clock.monotonic()
    for _ in range(10):
        await worker._wait_for_work()
    assert world.clock.monotonic() - begin == pytest.approx(10.0), "it has looked once per second"
    assert asked.count == 0


async def test_the_first_look_after_a_commit_asks_and_finds_the_work(world: World) -> None:
    worker, asked = await resting(world)
    await worker._wait_for_work()
    other = await with_bell(world, SilentBell)
    world.clock.advance(0.3)
    await other.client.submit("echo", 7)
    assert await until_it_takes_something(worker, world.clock) == pytest.approx(0.7)
    assert asked.count == 1


async def test_a_delayed_start_needs_neither_a_ring_nor_a_commit(world: World) -> None:
    worker, asked = await resting(world)
    other = await with_bell(world, SilentBell)
    await other.client.submit("echo", 7, delay=7.5)
    assert await until_it_takes_something(worker, world.clock) == pytest.approx(7.5)
    assert asked.count == 1, "it was told once when that would be"


async def test_work_that_another_process_commits_without_a_ring_is_found_within_the_poll_interval(
    store_url: str,
) -> None:
    """As when a ring is lost, or the process that should have rung is dead."""
    settings: dict[str, Any] = {key: value for key, value in DEFAULTS.items() if value is not None}
    async with World(store_url, settings=DEFAULTS, clock=SystemClock()) as world:
        world.app.agents.update(app_for(world.app.url, world.namespace, settings).agents)
        node = await with_bell(world, SilentBell)
        child = started(world.app.url, world.namespace, settings)
        try:
            for number in range(3):
                handle = await node.client.submit("echo", number)
                assert await handle.result(PATIENCE_SECONDS) == number
                task = await handle.task()
                late = ((task.started_at or 0) - task.created_at) / SECOND
                assert late < OTHERWISE_SECONDS / 2
        finally:
            child.kill()
            child.wait(PATIENCE_SECONDS)
            child.close()


async def test_a_watchdog_tick_that_is_due_soon_replaces_a_look(world: World) -> None:
    node = await with_bell(world, DeafBell)
    worker = await world.started_worker(node)
    watch = worker.watchdog
    ticks = Asked(node)
    assert not watch.tick_if_due(1000), "it does not even run"
    running = world.app.runtime.spawn(watch.run(), "watching")
    await eventually(lambda: watch._rests_until is not None, "it has ticked and rests")
    assert ticks.count == 1
    assert not watch.tick_if_due(2.1), "it is not near"
    world.clock.advance(599)
    assert watch.tick_if_due(2.1)
    await eventually(lambda: ticks.count == 2, "it ticks now")
    await eventually(lambda: watch._rests_until is not None, "it rests again")
    assert ticks.count == 2, "once"
    watch.stop()
    await running
