"""The heart by itself: what it takes its lease to be, and when it gives up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.runtime import ManualClock, Runtime
from endwell.store.contract import Store
from endwell.worker.heart import Heart, Named
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
        self.heart = Heart(
            world.store,
            Runtime.system(clock=clock),
            namespace="default",
            session_id="s1",
            lease_seconds=LEASE_SECONDS,
            interval_seconds=10.0,
            named=Named,
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
