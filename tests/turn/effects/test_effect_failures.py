"""Effects whose call fails, is late or returns what cannot be kept, and what `reconcile` says of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from endwell import NOT_DONE, Context, Done, NotDone, TaskFailed
from endwell.policy.retry import RetryPolicy
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually
from tests.turn.outside_calls import Counting, Pay, effect_events, effect_of, payer


@pytest.mark.parametrize("says", [Done("found"), "found"])
async def test_a_failed_call_that_was_done_is_done(effect_world: World, says: Any) -> None:
    pay = Pay(says=says)
    payer(effect_world, pay)
    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "found"
    assert (pay.calls, pay.asked) == (1, [("order-1", 5)])
    assert await effect_events(effect_world, handle) == [
        "effect.intended",
        "effect.unknown",
        "effect.settled",
    ]


@pytest.mark.parametrize("says", [NOT_DONE, None])
async def test_a_failed_call_that_was_not_done_fails_the_turn_and_may_be_tried_again(
    effect_world: World, says: Any
) -> None:
    pay = Pay(says=says)
    payer(effect_world, pay, retries=1)
    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid 5"
    assert pay.calls == 2
    assert (await handle.task()).retry_count == 1


async def test_a_call_that_was_not_done_is_tried_again_in_the_same_turn_where_asked_for(
    effect_world: World,
) -> None:
    pay = Pay(says=NOT_DONE, fails=2)
    payer(effect_world, pay, retry=RetryPolicy(max_retries=2, base_seconds=0.01))
    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid 5"
    assert (pay.calls, (await handle.task()).retry_count) == (3, 0)


async def test_where_the_outside_deduplicates_a_failed_call_may_be_repeated(effect_world: World) -> None:
    pay = Pay()
    payer(effect_world, pay, can_look=False, retries=1, deduplicates=True)
    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid 5"
    assert pay.calls == 2


async def test_where_the_outside_deduplicates_a_call_that_is_given_up_stays_unknown(
    effect_world: World,
) -> None:
    """It may have taken place: only a call that follows at once may say that it does not matter."""
    pay = Pay()
    payer(effect_world, pay, can_look=False, retries=0, deduplicates=True)
    await effect_world.working()
    handle = await effect_world.submitted("payer")
    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)
    assert (pay.calls, (await effect_of(effect_world, "order-1")).status) == (1, "unknown")
    again = await effect_world.client.actions.retry(handle.id)
    assert await (await effect_world.client.task(again.id)).result(PATIENCE_SECONDS) == "paid 5"
    assert (await effect_of(effect_world, "order-1")).status == "done"


async def test_a_function_may_raise_not_done(effect_world: World) -> None:
    calls = Counting()

    def pay() -> str:
        calls("call")
        if len(calls.calls) == 1:
            raise NotDone("refused at the door")
        return "paid"

    @effect_world.app.agent("payer", retries=1, delays=[0.01])
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay)

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid"
    assert len(calls.calls) == 2
    assert "effect.unknown" not in await effect_events(effect_world, handle)


@pytest.mark.covers("S3.30", "S3.36")
async def test_a_timed_out_effect_is_unknown_and_never_a_retryable_failure(effect_world: World) -> None:
    calls = Counting()

    async def pay() -> None:
        calls("call")
        await asyncio.sleep(30)

    @effect_world.app.agent("payer", retries=3)
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, timeout=0.5, key="slow")

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    await effect_world.in_status(handle, "blocked")
    (doubt,) = await effect_world.facts(handle, "effect.unknown")
    assert (doubt.key, doubt.reason) == ("slow", "timeout")
    assert calls.calls == ["call"]


async def test_a_function_that_is_still_running_may_yet_do_it(effect_world: World) -> None:
    """That it is not done now says nothing: a person is asked, and the thread's late return is discarded."""
    let_go = threading.Event()
    calls = Counting()

    def pay() -> str:
        calls("call")
        let_go.wait(PATIENCE_SECONDS)
        return "paid at last"

    @effect_world.app.agent("payer", retries=3)
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, timeout=0.5, key="slow", reconcile=lambda key: NOT_DONE, retry=3)

    worker = await effect_world.working()
    handle = await effect_world.submitted("payer")
    await effect_world.in_status(handle, "blocked")
    assert worker._turns.slots_taken == 1, "its thread keeps the slot"
    let_go.set()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert calls.calls == ["call"]
    assert (await effect_of(effect_world, "slow")).status == "unknown"


async def test_a_result_that_cannot_be_kept_leaves_the_effect_unknown(effect_world: World) -> None:
    calls = Counting()

    def pay() -> Any:
        calls("call")
        return object()

    @effect_world.app.agent("payer", retries=3)
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay)

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    await effect_world.in_status(handle, "blocked")
    assert calls.calls == ["call"]
