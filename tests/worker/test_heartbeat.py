"""The heart by itself: what it takes its lease to be, and when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.runtime import ManualClock, Runtime
from endwell.runtime.ids import SystemIds
from endwell.runtime.threads import ThreadPool
from endwell.store.contract import Store
from endwell.worker.heartbeat import HeartbeatLoop, HeldWork
from tests.store.world import SqliteDatabase, World

LEASE_SECONDS = 30.0


class Line:
    """The way to the store: a request takes as long as the test says, or does not arrive."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock
        self.takes_seconds = 0.0
        self.is_cut = False

    async def commit(self, commands: Sequence[c.Command]) -> Any:
        self._clock.advance(self.takes_seconds)
        if self.is_cut:
            raise StoreError("no way there")
        return await self._store.commit(commands)


class Patient:
    """A heart on a real store, and what it told its worker."""

    def __init__(self, world: World, clock: ManualClock) -> None:
        self.clock = clock
        self.line = Line(world.store, clock)
        self.lost: list[str] = []
        self.heart = HeartbeatLoop(
            world.store,
            Runtime.system(clock=clock),
            namespace="default",
            session_id="s1",
            lease_seconds=LEASE_SECONDS,
            interval_seconds=10.0,
            named=HeldWork,
            on_stale=lambda stale: None,
            on_lost=self.lost.append,
        )

    async def beat(self) -> None:
        await self.heart.beat_once(self.line)  # type: ignore[arg-type]  # a store as far as a heart can see


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Patient]:
    database = SqliteDatabase(tmp_path / "endwell.db")
    world = World(database)
    await world.open()
    await world.open_session("s1", lease=LEASE_SECONDS)
    yield Patient(world, database.clock)
    await world.close()


async def test_a_lease_counts_from_the_moment_its_renewal_was_sent(patient: Patient) -> None:
    """The store may have written it at any moment since; only counting from the sending is never too long."""
    patient.line.takes_seconds = 20.0

    await patient.beat()

    assert patient.heart.seconds_left == pytest.approx(LEASE_SECONDS - 20.0)
    assert patient.lost == []


async def test_a_renewal_that_took_longer_than_the_lease_renews_nothing_here(patient: Patient) -> None:
    patient.line.takes_seconds = LEASE_SECONDS + 1

    await patient.beat()

    assert not patient.heart.is_good


async def test_one_missed_beat_is_no_lost_lease(patient: Patient) -> None:
    patient.clock.advance(10)
    patient.line.is_cut = True

    await patient.beat()

    assert patient.lost == []
    assert patient.heart.is_good


async def test_a_heart_that_cannot_beat_gives_up_when_its_lease_is_over(patient: Patient) -> None:
    patient.clock.advance(LEASE_SECONDS + 1)
    patient.line.is_cut = True

    await patient.beat()

    assert len(patient.lost) == 1
    assert "ran out" in patient.lost[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class NotedRuntime(Runtime):
    """Whoever waits is there at once; how long they would have waited is noted."""

    waited: list[float] = field(default_factory=list)

    async def wait(self, event: asyncio.Event, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return False


def resting(
    patient: Patient, named: Callable[[], HeldWork], *, interval: float
) -> tuple[HeartbeatLoop, list[float]]:
    """A heart that only rests, and for how long it does."""
    runtime = NotedRuntime(clock=patient.clock, ids=SystemIds(patient.clock), pool=ThreadPool(1))
    heart = HeartbeatLoop(
        patient.line,  # type: ignore[arg-type]  # a store as far as a heart can see
        runtime,
        namespace="default",
        session_id="s1",
        lease_seconds=LEASE_SECONDS,
        interval_seconds=interval,
        named=named,
        on_stale=lambda stale: None,
        on_lost=patient.lost.append,
    )
    heart._now_flag = asyncio.Event()
    return heart, runtime.waited


@pytest.mark.parametrize(
    ("interval", "held", "idle"), [(10.0, 10.0, 20.0), (5.0, 5.0, 10.0), (14.0, 14.0, 22.0)]
)
async def test_a_worker_that_holds_nothing_beats_half_as_often_and_before_its_lease_is_over(
    patient: Patient, interval: float, held: float, idle: float
) -> None:
    something = HeldWork(attempts=(("task", "attempt"),))
    heart, waited = resting(patient, lambda: something, interval=interval)
    await heart._rest()
    assert sum(waited) == pytest.approx(held)
    heart, waited = resting(patient, HeldWork, interval=interval)
    await heart._rest()
    assert sum(waited) == pytest.approx(idle)


async def test_a_heart_that_rests_for_long_beats_soon_once_something_is_held(patient: Patient) -> None:
    held: list[tuple[str, str]] = []
    heart, waited = resting(patient, lambda: HeldWork(attempts=tuple(held)), interval=10.0)
    usual = heart._pace_seconds

    def claims_meanwhile() -> float:
        if sum(waited) > 12:  # longer than the interval of a worker that holds something
            held.append(("task", "attempt"))
        return usual()

    heart._pace_seconds = claims_meanwhile  # type: ignore[method-assign]
    await heart._rest()
    assert 12 < sum(waited) < 12 + 2 * heart._look_seconds
