"""Gather: parts of a turn beside each other, each with step identities of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from endwell import Context, SyncContext, TaskFailed
from endwell.errors import UsageError
from endwell.model import commands as c
from endwell.model.card import record_id
from endwell.turn.suspension import Suspended
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually
from tests.turn.outside_calls import Counting, recorded


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_parts_return_in_order_and_have_identities_of_their_own(world: World, kind: str) -> None:
    @world.app.agent("async")
    async def run(ctx: Context) -> Any:
        return await ctx.gather(*(ctx.step("square", pow, n, 2) for n in (3, 1, 2)))

    @world.app.agent("sync")
    def run_in_thread(ctx: SyncContext) -> Any:
        return ctx.gather(*(lambda n=n: ctx.step("square", pow, n, 2) for n in (3, 1, 2)))

    await world.working()
    handle = await world.submitted(kind)
    assert await handle.result(PATIENCE_SECONDS) == [9, 1, 4]
    steps = {fact.step for fact in await recorded(world, handle)}
    assert steps == {"1:(1.0)square#1", "1:(1.1)square#1", "1:(1.2)square#1"}


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_parts_run_at_the_same_time(sqlite_world: World, kind: str) -> None:
    meet = threading.Barrier(3)

    @sqlite_world.app.agent("async")
    async def run(ctx: Context) -> Any:
        return await ctx.gather(
            *(ctx.step("meet", lambda: meet.wait(PATIENCE_SECONDS) >= 0) for _ in range(3))
        )

    @sqlite_world.app.agent("sync")
    def run_in_thread(ctx: SyncContext) -> Any:
        return ctx.gather(*[lambda: ctx.step("meet", lambda: meet.wait(PATIENCE_SECONDS) >= 0)] * 3)

    await sqlite_world.working()
    assert await (await sqlite_world.submitted(kind)).result(PATIENCE_SECONDS) == [True, True, True]


async def test_functions_and_gathers_within_gathers_have_branches_too(sqlite_world: World) -> None:
    @sqlite_world.app.agent("clerk")
    async def run(ctx: Context) -> Any:
        async def inner(n: int) -> Any:
            first = await ctx.step("one", lambda: n)
            return [first, *await ctx.gather(ctx.step("one", lambda: -n), ctx.step("one", lambda: -n))]

        nested = await ctx.gather(lambda: inner(1), lambda: inner(2))
        return [*nested, *await ctx.gather(ctx.step("one", lambda: 9)), *await ctx.gather()]

    await sqlite_world.working()
    handle = await sqlite_world.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == [[1, -1, -1], [2, -2, -2], 9]
    steps = sorted(fact.step for fact in await recorded(sqlite_world, handle))
    assert steps == [
        "1:(1.0)one#1",
        "1:(1.0,1.0)one#1",
        "1:(1.0,1.1)one#1",
        "1:(1.1)one#1",
        "1:(1.1,1.0)one#1",
        "1:(1.1,1.1)one#1",
        "1:(2.0)one#1",
    ]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_replay_finds_every_part_by_its_branch(sqlite_world: World, kind: str) -> None:
    world = sqlite_world
    seen = Counting()

    def fails_once(ctx: Context) -> int:
        if ctx.retry_count == 0:
            raise RuntimeError("the last part")
        return 3

    def parts(ctx: Any) -> list[Callable[[], Any]]:
        return [lambda n=n: ctx.step("one", seen, n) for n in (1, 2)] + [
            lambda: ctx.step("one", fails_once, ctx)
        ]

    @world.app.agent("async", delays=[0.01])
    async def run(ctx: Context) -> Any:
        return await ctx.gather(*parts(ctx))

    @world.app.agent("sync", delays=[0.01])
    def run_in_thread(ctx: SyncContext) -> Any:
        return ctx.gather(*parts(ctx))

    await world.working()
    handle = await world.submitted(kind)

    async def ended() -> bool:
        world.clock.advance(0.05)
        return (await handle.task()).is_ended

    await eventually(ended)
    assert await handle.result(PATIENCE_SECONDS) == [1, 2, 3]
    assert sorted(seen.calls) == [1, 2]


async def test_all_parts_have_ended_when_the_first_failure_is_raised(sqlite_world: World) -> None:
    ended: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        ended.append("slow")

    async def fails(text: str) -> None:
        raise ValueError(text)

    @sqlite_world.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.gather(ctx.step("a", slow), ctx.step("b", fails, "first"), ctx.step("c", fails, "second"))

    await sqlite_world.working()
    handle = await sqlite_world.submitted("clerk")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["message"] == "first"
    assert ended == ["slow"]


async def test_branches_wait_together(world: World) -> None:
    async def asks(ctx: Context, name: str) -> None:
        step = ctx._recorder.ids.begin_step(name)
        if await ctx._recorder.record_of(step) is None:
            call = c.Call(tool_call_id=record_id(ctx.task_id, step), kind="tool", within=10**9, name=name)
            raise Suspended((call,))

    @world.app.agent("clerk")
    async def run(ctx: Context) -> str:
        await ctx.gather(
            lambda: asks(ctx, "one"), ctx.step("between", asyncio.sleep, 0.01), lambda: asks(ctx, "two")
        )
        return "answered"

    await world.working()
    handle = await world.submitted("clerk")
    await world.in_status(handle, "suspended")
    (suspended,) = await world.facts(handle, "task.suspended")
    assert [wait.name for wait in suspended.waits] == ["one", "two"]
    assert [fact.step for fact in await recorded(world, handle)] == ["1:(1.1)between#1"]
    for wait in suspended.waits:
        await world.store.commit_one(
            c.Answer(
                command_id=world.app.runtime.ids.new(),
                namespace=world.namespace,
                task_id=handle.id,
                tool_call_id=wait.tool_call_id,
                content=b"1",
                content_hash="h",
            )
        )
    assert await handle.result(PATIENCE_SECONDS) == "answered"


async def test_a_failed_branch_takes_precedence_over_a_waiting_one(sqlite_world: World) -> None:
    async def waits() -> None:
        raise Suspended((c.Call(tool_call_id="x", kind="tool", within=1),))

    async def fails() -> None:
        raise ValueError("no")

    @sqlite_world.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.gather(waits, fails)

    await sqlite_world.working()
    with pytest.raises(TaskFailed):
        await (await sqlite_world.submitted("clerk")).result(PATIENCE_SECONDS)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_parts_that_are_no_functions_or_verbs_are_refused(sqlite_world: World, kind: str) -> None:
    seen: list[str] = []

    @sqlite_world.app.agent("async")
    async def run(ctx: Context) -> None:
        with pytest.raises(UsageError) as refused:
            await ctx.gather(ctx.step("one", lambda: 1), asyncio.ensure_future(asyncio.sleep(0)))
        seen.append(refused.value.message)

    @sqlite_world.app.agent("sync")
    def run_in_thread(ctx: SyncContext) -> None:
        with pytest.raises(UsageError) as refused:
            ctx.gather(1)  # type: ignore[arg-type]
        seen.append(refused.value.message)

    await sqlite_world.working()
    await (await sqlite_world.submitted(kind)).result(PATIENCE_SECONDS)
    assert len(seen) == 1


async def test_two_gathers_at_once_in_one_branch_are_refused(sqlite_world: World) -> None:
    @sqlite_world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        one = ctx.gather(ctx.step("a", asyncio.sleep, 0.01))
        two = ctx.gather(lambda: ctx.step("a", asyncio.sleep, 0.01))
        await asyncio.gather(one, two)

    await sqlite_world.working()
    with pytest.raises(TaskFailed) as failed:
        await (await sqlite_world.submitted("clerk")).result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "ambiguous_step"


async def test_a_lost_turn_cancels_its_branches(world: World) -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("part")

    @world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        await ctx.gather(ctx.step("a", waits), ctx.step("b", waits))

    worker = await world.working()
    handle = await world.submitted("clerk")
    await eventually(lambda: len(worker._turns.running_steps()) == 2)
    await handle.cancel()
    await eventually(lambda: ended == ["part", "part"])
    await eventually(lambda: worker._turns.slots_taken == 0)


async def test_an_exception_group_counts_as_its_exceptions(world: World) -> None:
    """Code that uses `asyncio.TaskGroup` instead still waits and resumes; nothing fails."""

    @world.app.agent("clerk")
    async def run(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            for name in ("one", "two"):
                group.create_task(ctx.sleep(5, name=name))
        return "rested"

    await world.working()
    pmo = await world.supervisor()
    handle = await world.submitted("clerk")

    async def ended() -> bool:
        if (await handle.task()).status == "suspended":
            world.clock.advance(6)
        await pmo.run_once()
        return (await handle.task()).is_ended

    await eventually(ended)
    assert await handle.result(PATIENCE_SECONDS) == "rested"
    assert "task.retry_scheduled" not in await world.history(handle)


@pytest.mark.parametrize("verb", ["call", "tool", "sleep", "wait_signal"])
async def test_two_waits_of_one_name_at_once_are_refused(world: World, verb: str) -> None:
    """`asyncio.gather` would wait for one after the other, at a cost that grows with the square."""

    @world.app.agent("other")
    async def other(payload: Any = None) -> str:
        return "answer"

    @world.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        waits: dict[str, Callable[[], Awaitable[Any]]] = {
            "call": lambda: ctx.call("other"),
            "tool": lambda: ctx.tool("outside"),
            "sleep": lambda: ctx.sleep(0.01),
            "wait_signal": lambda: ctx.wait_signal("go"),
        }
        await asyncio.gather(*(waits[verb]() for _ in range(3)))

    await world.working()
    with pytest.raises(TaskFailed) as failed:
        await (await world.submitted("clerk")).result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "ambiguous_step"
