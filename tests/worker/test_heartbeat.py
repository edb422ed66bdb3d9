"""The heartbeat alone: what it takes its lease to be, and when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.runtime import Runtime
from endwell.runtime.ids import SystemIds
from endwell.runtime.threads import ThreadPool
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.actor import Actor
from endwell.store.contract import Store
from endwell.worker.heartbeat import HeartbeatLoop, HeldWork
from tests.store.world import SqliteDatabase, World
from tests.support.manual_clock import ManualClock

LEASE_SECONDS = 30.0


class SlowStore:
    """A store that answers as slowly as the test says, or not at all."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock
        self.takes_seconds = 0.0
        self.is_cut = False

    async def commit(self, commands: Sequence[c.Command]) -> Any:
        self._clock.advance(self.takes_seconds)
        if self.is_cut:
            raise StoreError("the store cannot be reached")
        return await self._store.commit(commands)


class HeartbeatBench:
    """A heartbeat on a real store; the bench itself is its lease's holder."""

    def __init__(self, world: World, clock: ManualClock) -> None:
        self.clock = clock
        self.store = SlowStore(world.store, clock)
        self.lost: list[str] = []
        self.held = HeldWork()
        self.heartbeat = self.new_heartbeat(Runtime.system(clock=clock), interval=10.0)

    def new_heartbeat(self, runtime: Runtime, *, interval: float) -> HeartbeatLoop:
        store: Any = self.store
        session = Actor(store, runtime.ids, namespace="default", name="s1")
        settings = WorkerSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=interval)
        return HeartbeatLoop(session, runtime, settings, self, self.on_lost)

    def held_work(self) -> HeldWork:
        return self.held

    def on_stale(self, attempts: tuple[str, ...]) -> None: ...

    def on_lost(self, session_id: str, why: str) -> None:
        self.lost.append(why)

    async def beat(self) -> None:
        store: Any = self.store
        await self.heartbeat.beat_once(store)
        await asyncio.sleep(0)  # the holder is called on this loop


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[HeartbeatBench]:
    database = SqliteDatabase(tmp_path / "endwell.db")
    world = World(database)
    await world.open()
    await world.open_session("s1", lease=LEASE_SECONDS)
    yield HeartbeatBench(world, database.clock)
    await world.close()


async def test_a_lease_counts_from_the_moment_its_renewal_was_sent(bench: HeartbeatBench) -> None:
    """The store may have written it at any moment since, so only this start is never too late."""
    bench.store.takes_seconds = 20.0

    await bench.beat()

    assert bench.heartbeat.seconds_left == pytest.approx(LEASE_SECONDS - 20.0)
    assert bench.lost == []


async def test_a_renewal_slower_than_the_lease_does_not_renew_it(bench: HeartbeatBench) -> None:
    bench.store.takes_seconds = LEASE_SECONDS + 1

    await bench.beat()

    assert not bench.heartbeat.is_good


async def test_one_missed_beat_does_not_lose_the_lease(bench: HeartbeatBench) -> None:
    bench.clock.advance(10)
    bench.store.is_cut = True

    await bench.beat()

    assert bench.lost == []
    assert bench.heartbeat.is_good


async def test_a_heartbeat_that_fails_gives_up_when_its_lease_is_over(bench: HeartbeatBench) -> None:
    bench.clock.advance(LEASE_SECONDS + 1)
    bench.store.is_cut = True

    await bench.beat()

    assert len(bench.lost) == 1
    assert "ran out" in bench.lost[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class NotedRuntime(Runtime):
    """Every wait ends at once; its length is noted."""

    waited: list[float] = field(default_factory=list)

    async def wait(self, event: asyncio.Event, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return False


def resting_heartbeat(bench: HeartbeatBench, *, interval: float) -> tuple[HeartbeatLoop, list[float]]:
    """A heartbeat whose rests take no time, and the lengths of its rests."""
    runtime = NotedRuntime(clock=bench.clock, ids=SystemIds(bench.clock), pool=ThreadPool(1))
    heartbeat = bench.new_heartbeat(runtime, interval=interval)
    heartbeat._must_beat = asyncio.Event()
    return heartbeat, runtime.waited


@pytest.mark.parametrize(
    ("interval", "held", "idle"), [(10.0, 10.0, 20.0), (5.0, 5.0, 10.0), (14.0, 14.0, 22.0)]
)
async def test_an_idle_worker_beats_half_as_often_and_always_within_its_lease(
    bench: HeartbeatBench, interval: float, held: float, idle: float
) -> None:
    bench.held = HeldWork(attempts=(("task", "attempt"),))
    heartbeat, waited = resting_heartbeat(bench, interval=interval)
    await heartbeat._wait_for_next_beat()
    assert sum(waited) == pytest.approx(held)
    bench.held = HeldWork()
    heartbeat, waited = resting_heartbeat(bench, interval=interval)
    await heartbeat._wait_for_next_beat()
    assert sum(waited) == pytest.approx(idle)


async def test_an_idle_heartbeat_beats_soon_once_something_is_held(bench: HeartbeatBench) -> None:
    heartbeat, waited = resting_heartbeat(bench, interval=10.0)
    usual = heartbeat._pace_seconds

    def claim_during_the_rest() -> float:
        if sum(waited) > 12:  # longer than the interval of a worker that holds something
            bench.held = HeldWork(attempts=(("task", "attempt"),))
        return usual()

    heartbeat._pace_seconds = claim_during_the_rest  # type: ignore[method-assign]
    await heartbeat._wait_for_next_beat()
    assert 12 < sum(waited) < 12 + 2 * heartbeat._look_seconds
