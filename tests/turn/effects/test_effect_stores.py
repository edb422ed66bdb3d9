"""Effect stores: what they keep, and when the log says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import endwell
from endwell import Context
from endwell.errors import StoreError
from endwell.runtime import Runtime
from endwell.store.effect_store import EffectStore, MemoryEffectStore
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World
from tests.turn.outside_calls import Counting, effect_events


class Noting(MemoryEffectStore):
    """Notes what the log said when a result was put away, and may be out of order at first."""

    def __init__(self, world: World, failures: int = 0) -> None:
        super().__init__()
        self._world = world
        self._failures = failures
        self.log: list[str] = []

    async def put(self, key: str, content: bytes, attempt_id: str) -> None:
        if self._failures:
            self._failures -= 1
            raise StoreError("the effect store is away")
        events = await self._world.store.events_after(self._world.namespace, "", 100)
        self.log = [logged.event.type for logged in events]
        await super().put(key, content, attempt_id)


@pytest.mark.covers("S3.42")
async def test_a_turn_that_is_run_again_executes_what_is_neither_recorded_nor_kept(
    effect_world: World,
) -> None:
    """Its first run died before the effect: then it is executed, kept first, and logged after that."""
    pay = Counting()
    effects = effect_world.app.effects = Noting(effect_world)
    runs: list[int] = []

    @effect_world.app.agent("payer", retries=1, delays=[0.01])
    async def run(ctx: Context) -> Any:
        await ctx.step("look", lambda: runs.append(0))
        runs.append(1)
        if runs.count(1) == 1:
            raise ConnectionError("before anything was changed outside")
        return await ctx.effect("pay", pay, 5, key="order-1")

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == 5
    assert (runs, pay.calls) == ([0, 1, 1], [5]), "the recorded step is not run again"
    assert effects.log[-1] == "effect.intended", "it was kept before the log said that it is done"
    history = await effect_world.history(handle)
    assert (
        history.index("task.retry_scheduled")
        < history.index("effect.intended")
        < history.index("effect.done")
    )


@pytest.mark.covers("S3.37", "S3.38", "S3.39", "S3.40", "S3.46", "S3.47")
async def test_with_an_effect_store_the_result_is_there_before_the_log_says_so(effect_world: World) -> None:
    pay = Counting()
    effects = effect_world.app.effects = Noting(effect_world, failures=2)

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, 5, key="order-1")

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == 5
    assert pay.calls == [5]
    assert effects.log[-1] == "effect.intended"
    assert list(effects.results) == [f"{effect_world.namespace}/order-1"]
    (kept, attempt) = effects.results[f"{effect_world.namespace}/order-1"]
    assert kept == b"5"
    assert attempt in {event.attempt_id for event in await effect_world.events(handle)}


@pytest.mark.covers("S3.41", "S3.48")
async def test_a_result_in_the_effect_store_is_recorded_by_the_next_attempt(effect_world: World) -> None:
    """As after a restore of the database from an old backup: the log has never heard of the effect."""
    pay = Counting()
    effects = effect_world.app.effects = MemoryEffectStore()
    await effects.put(f"{effect_world.namespace}/order-1", b'"paid before"', "an attempt long gone")

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, 5, key="order-1")

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid before"
    assert pay.calls == []
    assert await effect_events(effect_world, handle) == ["effect.intended", "effect.done"]
    (record,) = await effect_world.facts(handle, "step.recorded")
    assert record.result_type == "side_effect_committed"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def effect_store(request: pytest.FixtureRequest, tmp_path: Path) -> EffectStore:
    if request.param == "memory":
        return endwell.MemoryEffectStore()
    if request.param == "sqlite":
        return endwell.SqliteEffectStore(tmp_path / "effects.db")
    return endwell.PostgresEffectStore(str(request.getfixturevalue("shared_postgres_url")))


@pytest.mark.covers("S3.46")
async def test_every_effect_store_keeps_the_first_result(effect_store: EffectStore, tmp_path: Path) -> None:
    key = f"{tmp_path}/order"
    assert await effect_store.get(key) is None
    await asyncio.gather(*(effect_store.put(key, b"1", "a") for _ in range(3)))
    await effect_store.put(key, b"2", "b")
    assert await effect_store.get(key) == b"1"
    await effect_store.close()
    assert await effect_store.get(key) == b"1"
    await effect_store.close()


async def test_threads_that_share_an_effect_store_on_sqlite_ask_it_one_after_another(tmp_path: Path) -> None:
    shared = endwell.SqliteEffectStore(tmp_path / "effects.db", runtime=Runtime.system(threads=8))
    keys = [f"order-{n % 40}" for n in range(400)]
    await asyncio.gather(*(shared.put(key, key.encode(), "a") for key in keys))
    found = await asyncio.gather(*(shared.get(key) for key in keys))
    await shared.close()

    assert found == [key.encode() for key in keys]


@pytest.mark.parametrize(
    "effect_store",
    [
        endwell.SqliteEffectStore("/nowhere/at/all/effects.db"),
        endwell.PostgresEffectStore("postgresql://localhost:1/none"),
    ],
)
async def test_an_unusable_effect_store_is_refused(effect_store: EffectStore) -> None:
    with pytest.raises(StoreError):
        await effect_store.get("order")
