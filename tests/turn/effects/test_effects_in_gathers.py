"""Effects in branches: one key is called once, and a gather that is asked for again makes nothing twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from endwell import Context, SyncContext
from tests.patience import PATIENCE_SECONDS
from tests.support.bank import Bank
from tests.support.world import World, eventually


@pytest.fixture
def bank() -> Any:
    one = Bank()
    yield one
    one.release.set()


@pytest.mark.parametrize("key", ["order-1", None])
async def test_the_effects_of_an_abandoned_gather_are_joined_when_it_is_asked_for_again(
    effect_world: World, bank: Bank, key: str | None
) -> None:
    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        for _ in range(3):
            try:
                parts = [ctx.effect("pay", bank.charge, 5, key=key), ctx.step("look", lambda: "seen")]
                return await asyncio.wait_for(ctx.gather(*parts), 0.1)
            except TimeoutError:
                continue
        bank.release.set()
        return [await ctx.effect("pay", bank.charge, 5, key=key), "alone"]

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == ["receipt 1", "alone"]
    assert bank.begun == 1


@pytest.mark.parametrize("is_nested", [True, False])
async def test_an_effect_of_a_gather_that_failed_is_not_made_again_by_the_next_one(
    effect_world: World, bank: Bank, is_nested: bool
) -> None:
    """In the attempt that tries again, and in the next one, which sees only records."""
    fails = iter([True, False, True, False])
    bank.release.set()

    @effect_world.app.agent("payer", delays=[0.01])
    async def run(ctx: Context) -> Any:
        async def look() -> str:
            if next(fails):
                raise ConnectionError("away")
            return "seen"

        async def pay() -> Any:
            return await ctx.gather(ctx.effect("pay", bank.charge, 5), ctx.effect("pay", bank.charge, 5))

        for _ in range(2):
            try:
                result = await ctx.gather(pay if is_nested else ctx.effect("pay", bank.charge, 5), look)
                break
            except ConnectionError:
                continue
        if ctx.retry_count == 0:
            raise RuntimeError("after the gathers")
        return result

    await effect_world.working()
    receipts, seen = await (await effect_world.submitted("payer")).result(PATIENCE_SECONDS)
    # two effects side by side may be carried out in either order
    assert sorted(receipts) == ["receipt 1", "receipt 2"] if is_nested else receipts == "receipt 1"
    assert seen == "seen"
    assert bank.charges == ([5, 5] if is_nested else [5])


async def test_effects_of_one_name_in_gathers_that_returned_are_each_made(
    effect_world: World, bank: Bank
) -> None:
    bank.release.set()

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return [await ctx.gather(ctx.effect("pay", bank.charge, 5)) for _ in range(2)]

    await effect_world.working()
    assert await (await effect_world.submitted("payer")).result(PATIENCE_SECONDS) == [
        ["receipt 1"],
        ["receipt 2"],
    ]


async def test_one_key_in_two_branches_is_called_once(effect_world: World, bank: Bank) -> None:
    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.gather(
            ctx.effect("first", bank.charge, 5, key="order-1", timeout=10),
            ctx.effect("second", bank.charge, 5, key="order-1", timeout=10),
        )

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    await eventually(lambda: bank.begun == 1)
    bank.release.set()
    assert await handle.result(PATIENCE_SECONDS) == ["receipt 1", "receipt 1"]
    assert bank.begun == 1


async def test_a_sync_agent_that_asks_from_two_threads_calls_once(effect_world: World, bank: Bank) -> None:
    @effect_world.app.agent("payer")
    def run(ctx: SyncContext) -> Any:
        return ctx.gather(
            lambda: ctx.effect("first", bank.charge, 5, key="order-1", timeout=10),
            lambda: ctx.effect("second", bank.charge, 5, key="order-1", timeout=10),
        )

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    await eventually(lambda: bank.begun == 1)
    bank.release.set()
    assert await handle.result(PATIENCE_SECONDS) == ["receipt 1", "receipt 1"]
    assert bank.begun == 1
