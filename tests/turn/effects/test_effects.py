"""Effects take place at most once, under a key that holds across attempts and tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import endwell
from endwell import Context, SyncContext, TaskFailed
from endwell.errors import UsageError
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World
from tests.turn.outside_calls import Counting, effect_events


@pytest.mark.covers("S3.36", "S4.33", "S4.34")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_effect_takes_place_once_however_the_turn_ends(effect_world: World, kind: str) -> None:
    pay = Counting()

    @effect_world.app.agent("async", delays=[0.01])
    async def run(ctx: Context) -> Any:
        paid = await ctx.effect("pay", pay, 5)
        if ctx.retry_count < 2:
            raise RuntimeError("after the effect")
        return paid

    @effect_world.app.agent("sync", delays=[0.01])
    def run_in_thread(ctx: SyncContext) -> Any:
        paid = ctx.effect("pay", pay, 5)
        if ctx.retry_count < 2:
            raise RuntimeError("after the effect")
        return paid

    await effect_world.working()
    handle = await effect_world.submitted(kind)
    assert await handle.result(PATIENCE_SECONDS) == 5
    assert pay.calls == [5]
    assert await effect_events(effect_world, handle) == ["effect.intended", "effect.done"]


@pytest.mark.covers("S3.14", "S3.39", "S3.40")
async def test_the_record_and_the_effect_are_one_commit_of_the_context_s_own_attempt(
    effect_world: World,
) -> None:
    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> list[str]:
        await ctx.effect("pay", lambda: "paid", key="one-commit")
        return [ctx.task_id, ctx.attempt_id]

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    whose = await handle.result(PATIENCE_SECONDS)
    events = {event.type: event for event in await effect_world.events(handle)}
    assert [events["effect.done"].task_id, events["effect.done"].attempt_id] == whose
    assert events["effect.done"].command_id == events["step.recorded"].command_id
    (recorded,) = await effect_world.facts(handle, "step.recorded")
    assert recorded.result_type == "side_effect_committed"
    assert events["effect.intended"].version < events["effect.done"].version


@pytest.mark.covers("S4.33", "S4.34")
async def test_the_key_holds_across_tasks_and_never_names_the_attempt(effect_world: World) -> None:
    pay = Counting()

    @effect_world.app.agent("payer")
    async def run(ctx: Context, key: str | None) -> Any:
        return await ctx.effect("pay", pay, 5, key=key)

    await effect_world.working()
    first, again = [await effect_world.submitted("payer", "order-1") for _ in range(2)]
    assert [await first.result(PATIENCE_SECONDS), await again.result(PATIENCE_SECONDS)] == [5, 5]
    assert pay.calls == [5]
    unnamed = await effect_world.submitted("payer", None)
    await unnamed.result(PATIENCE_SECONDS)
    (effect,) = await effect_world.store.effects_page(effect_world.namespace, task_id=unnamed.id)
    assert effect.key == f"{unnamed.id}:()pay#1"
    assert str(effect.attempt_id) not in effect.key


async def test_other_arguments_under_one_key_of_another_task_are_refused(effect_world: World) -> None:
    pay = Counting()

    @effect_world.app.agent("payer")
    async def run(ctx: Context, amount: int) -> Any:
        return await ctx.effect("pay", pay, amount, key="order-1")

    await effect_world.working()
    await (await effect_world.submitted("payer", 5)).result(PATIENCE_SECONDS)
    with pytest.raises(TaskFailed) as failed:
        await (await effect_world.submitted("payer", 6)).result(PATIENCE_SECONDS)
    error = failed.value.deliverable["error"]
    assert (error["code"], error["retryable"]) == ("effect_conflict", False)
    assert pay.calls == [5]


async def test_the_function_gets_the_key(effect_world: World) -> None:
    def named(idempotency_key: str) -> str:
        return idempotency_key

    def loose(**options: str) -> str:
        return options["idempotency_key"]

    async def asks() -> str:
        return endwell.effect_key()

    def asks_in_thread() -> str:
        return endwell.effect_key()

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        functions: list[Callable[..., Any]] = [named, loose, asks, asks_in_thread]
        told = [await ctx.effect("pay", fn, key=f"key-{n}") for n, fn in enumerate(functions)]
        with pytest.raises(UsageError):
            endwell.effect_key()
        return told

    await effect_world.working()
    assert await (await effect_world.submitted("payer")).result(PATIENCE_SECONDS) == [
        "key-0",
        "key-1",
        "key-2",
        "key-3",
    ]


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 501, 7])
async def test_an_invalid_key_is_refused(sqlite_world: World, key: Any) -> None:
    pay = Counting()

    @sqlite_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, key=key)

    await sqlite_world.working()
    handle = await sqlite_world.submitted("payer")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "bad_effect_key"
    assert pay.calls == []
