"""The watchdog is itself watched: a PMO records its ticks, and workers log when none ticks."""

from __future__ import annotations

import logging

import pytest

from endwell.model.moments import SECOND
from endwell.pmo.service import Pmo
from tests.support.world import World, eventually


async def ticked(world: World, *pmos: Pmo, seconds: float, every: float = 5.0) -> None:
    """Let time pass in which these supervisors tick."""
    while seconds > 0:
        world.clock.advance(min(seconds, every))
        for pmo in pmos:
            await pmo.run_once()
        seconds -= every


async def test_a_pmo_records_its_ticks_often_enough_never_to_look_late(
    world: World,
) -> None:
    pmo = await world.supervisor()
    assert await world.store.last_tick(world.namespace) is None
    await pmo.run_once()
    assert await world.store.last_tick(world.namespace) is not None
    ages = []
    for _ in range(20):
        await ticked(world, pmo, seconds=5)
        ages.append(await world.store.now() - (await world.store.last_tick(world.namespace) or 0))
    assert max(ages) < 3 * 5 * SECOND


async def test_a_pmo_whose_ticks_never_end_counts_as_absent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pmo = await world.supervisor()

    async def broken(*_: object) -> int:
        raise RuntimeError("a defect in a rule")

    monkeypatch.setattr(world.store, "probe", broken)
    for _ in range(3):
        world.clock.advance(5)
        with pytest.raises(RuntimeError):
            await pmo.run_once()
    assert await world.store.last_tick(world.namespace) is None


async def test_a_worker_logs_that_no_pmo_ticks_and_that_one_ticks_again(
    clerk: World, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await clerk.started_worker()
    first = await clerk.supervisor()
    await ticked(clerk, first, seconds=10)
    await worker.watchdog.run_once()
    assert worker.health().is_overseen

    clerk.clock.advance(14)  # the last tick that was told of is at most one interval older
    await worker.watchdog.run_once()
    clerk.clock.advance(7)
    with caplog.at_level(logging.WARNING, "endwell"):
        await worker.watchdog.run_once()
        await worker.watchdog.run_once()
    assert not worker.health().is_overseen
    assert [record.levelname for record in caplog.records if "no PMO has ticked" in record.message] == [
        "ERROR"
    ]

    other = await clerk.supervisor(await clerk.another_node())  # any process may take over
    await other.run_once()
    await worker.watchdog.run_once()
    assert worker.health().is_overseen
    assert "a PMO ticks again" in caplog.text


async def test_a_worker_that_has_just_started_gives_the_pmo_time_to_start(clerk: World) -> None:
    worker = await clerk.started_worker()
    await worker.watchdog.run_once()
    clerk.clock.advance(14)
    await worker.watchdog.run_once()
    assert worker.health().is_overseen
    clerk.clock.advance(2)
    await worker.watchdog.run_once()
    assert not worker.health().is_overseen


async def test_the_heartbeat_reports_the_age_of_the_watchdogs_last_tick(clerk: World) -> None:
    worker = await clerk.working()

    async def told() -> bool:
        session = await clerk.store.session(clerk.namespace, worker.session_id)
        return session is not None and session.ticked_at is not None

    await eventually(told, "the session says when its watchdog ticked")
