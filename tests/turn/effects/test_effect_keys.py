"""One key stands for one call: the same arguments, and the same function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from endwell import AsyncHandle, Context, NotDone, TaskFailed
from endwell.operate.actions import Actions
from endwell.store.actor import Actor
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World


class Shop:
    """Says what was called, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def charge(self, order: str, amount: int = 5) -> str:
        self.calls.append(f"charge {order} {amount}")
        return f"receipt for {order}"

    def mail(self, order: str) -> str:
        self.calls.append(f"mail {order}")
        return f"mail about {order}"

    def settle(self, order: str) -> str:
        """What `charge` may be called one day."""
        return self.charge(order)


async def refused(world: World, handle: AsyncHandle) -> None:
    """The task fails with a conflict, and is not tried again."""
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    error = failed.value.deliverable["error"]
    assert (error["code"], error["retryable"]) == ("effect_conflict", False)
    assert len([kind for kind in await world.history(handle) if kind == "task.claimed"]) <= 2


async def test_other_arguments_under_one_key_in_one_task_are_a_conflict(effect_world: World) -> None:
    calls: list[int] = []

    def pay(amount: int) -> str:
        calls.append(amount)
        return f"paid {amount}"

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        first = await ctx.effect("first", pay, 5, key="order-1")
        return [first, await ctx.effect("second", pay, 6, key="order-1")]

    await effect_world.working()
    with pytest.raises(TaskFailed) as failed:
        await (await effect_world.submitted("payer")).result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "effect_conflict"
    assert calls == [5]


async def test_a_replay_with_a_repaired_payload_is_a_conflict_once_the_effect_was_made(
    effect_world: World,
) -> None:
    calls: list[int] = []

    def pay(amount: int) -> str:
        calls.append(amount)
        return f"paid {amount}"

    @effect_world.app.agent("payer", retries=0)
    async def run(ctx: Context, amount: int) -> Any:
        await ctx.effect("pay", pay, amount)
        if amount == 5:
            raise RuntimeError("after the effect")
        return "done"

    await effect_world.working()
    first = await effect_world.submitted("payer", 5)
    with pytest.raises(TaskFailed):
        await first.result(PATIENCE_SECONDS)
    actions = Actions(
        Actor(effect_world.store, effect_world.app.runtime.ids, namespace=effect_world.namespace, name="ada")
    )
    replayed = AsyncHandle(effect_world.client, await actions.replay(first.id, b"6"))
    with pytest.raises(TaskFailed) as failed:
        await replayed.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "effect_conflict"
    assert calls == [5]


@pytest.mark.parametrize("names", [("charge", "mail"), ("do", "do")])
async def test_the_same_key_for_another_function_is_a_conflict_and_not_skipped(
    effect_world: World, names: tuple[str, str]
) -> None:
    shop = Shop()

    @effect_world.app.agent("seller")
    async def run(ctx: Context) -> Any:
        await ctx.effect(names[0], shop.charge, "o-1", key="o-1")
        return await ctx.effect(names[1], shop.mail, "o-1", key="o-1")

    await effect_world.working()
    await refused(effect_world, await effect_world.submitted("seller"))
    assert shop.calls == ["charge o-1 5"]


async def test_another_function_of_another_task_is_a_conflict_unless_its_step_has_the_same_name(
    effect_world: World,
) -> None:
    shop = Shop()

    @effect_world.app.agent("seller")
    async def run(ctx: Context, how: tuple[str, str]) -> Any:
        return await ctx.effect(how[0], getattr(shop, how[1]), "o-1", key="o-1")

    await effect_world.working()
    for how in (("pay", "charge"), ("pay", "settle"), ("bill", "charge")):
        assert (
            await (await effect_world.submitted("seller", how)).result(PATIENCE_SECONDS) == "receipt for o-1"
        )
    await refused(effect_world, await effect_world.submitted("seller", ("write", "mail")))
    assert shop.calls == ["charge o-1 5"]


async def test_a_fallback_may_take_the_key_of_a_call_that_was_not_made(effect_world: World) -> None:
    shop = Shop()

    def away(order: str) -> str:
        raise NotDone("the provider is away")

    @effect_world.app.agent("seller")
    async def run(ctx: Context) -> Any:
        try:
            return await ctx.effect("first", away, "o-1", key="o-1")
        except NotDone:
            return await ctx.effect("second", shop.charge, "o-1", key="o-1")

    await effect_world.working()
    assert await (await effect_world.submitted("seller")).result(PATIENCE_SECONDS) == "receipt for o-1"


@pytest.mark.parametrize("key", ["o-1", None])
@pytest.mark.parametrize("again", ["retry", "resume"])
async def test_other_arguments_for_an_effect_that_is_recorded_are_a_conflict(
    effect_world: World, again: str, key: str | None
) -> None:
    shop = Shop()
    amounts = iter([5, 6])

    @effect_world.app.agent("seller", retries=1, delays=[0.01])
    async def run(ctx: Context) -> Any:
        receipt = await ctx.effect("pay", shop.charge, "o-1", next(amounts), key=key)
        if again == "resume":
            await ctx.sleep(0.01)
        elif ctx.retry_count == 0:
            raise RuntimeError("after the effect")
        return receipt

    await effect_world.working()
    await refused(effect_world, await effect_world.submitted("seller"))
    assert shop.calls == ["charge o-1 5"]


async def test_a_reference_to_another_task_s_result_keeps_the_arguments_too(effect_world: World) -> None:
    shop = Shop()
    amounts = iter([5, 5, 6])

    @effect_world.app.agent("seller", retries=1, delays=[0.01])
    async def run(ctx: Context, is_first: bool) -> Any:
        receipt = await ctx.effect("pay", shop.charge, "o-1", next(amounts), key="o-1")
        if not is_first:
            await ctx.sleep(0.01)
        return receipt

    await effect_world.working()
    assert await (await effect_world.submitted("seller", True)).result(PATIENCE_SECONDS) == "receipt for o-1"
    await refused(effect_world, await effect_world.submitted("seller", False))


async def test_a_function_may_be_renamed_while_its_task_waits(effect_world: World) -> None:
    shop = Shop()
    functions = iter([shop.charge, shop.settle])

    @effect_world.app.agent("seller")
    async def run(ctx: Context) -> Any:
        receipt = await ctx.effect("pay", next(functions), "o-1")
        await ctx.sleep(0.01)
        return receipt

    await effect_world.working()
    assert await (await effect_world.submitted("seller")).result(PATIENCE_SECONDS) == "receipt for o-1"
    assert shop.calls == ["charge o-1 5"]


@pytest.mark.parametrize("by_position", [False, True])
async def test_arguments_that_a_partial_binds_are_compared_too(
    effect_world: World, by_position: bool
) -> None:
    """Also those beside a client, which cannot be compared."""
    shop = Shop()

    @effect_world.app.agent("seller")
    async def run(ctx: Context) -> Any:
        def bound(amount: int) -> Callable[[], str]:
            if by_position:
                return partial(Shop.charge, shop, "o-1", amount)
            return partial(partial(Shop.charge, shop), "o-1", amount=amount)

        assert await ctx.effect("pay", bound(5), key="o-1") == await ctx.effect("again", bound(5), key="o-1")
        return await ctx.effect("more", bound(6), key="o-1")

    await effect_world.working()
    await refused(effect_world, await effect_world.submitted("seller"))
    assert shop.calls == ["charge o-1 5"]


async def test_a_child_with_other_arguments_under_its_parent_s_key_is_refused(effect_world: World) -> None:
    shop = Shop()

    @effect_world.app.agent("child")
    async def child(ctx: Context) -> Any:
        return await ctx.effect("pay", shop.charge, "o-1", 6, key="o-1")

    @effect_world.app.agent("seller")
    async def run(ctx: Context) -> Any:
        await ctx.effect("pay", shop.charge, "o-1", 5, key="o-1")
        return await ctx.call("child")

    await effect_world.working()
    with pytest.raises(TaskFailed, match="o-1"):
        await (await effect_world.submitted("seller")).result(PATIENCE_SECONDS)
    assert shop.calls == ["charge o-1 5"]
