"""Steps: what is recorded is never computed again, and what a function returns is what is recorded."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from endwell import Context, Fail, SyncContext, TaskFailed
from endwell.errors import ReplayMismatch, StaleAttempt, UsageError
from endwell.operate.questions import whole_task
from endwell.policy.retry import RetryPolicy
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually
from tests.turn.outside_calls import Counting, is_ended_after_a_moment, recorded


@dataclass
class Plan:
    title: str
    parts: tuple[int, ...]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_recorded_step_is_not_run_again_when_the_turn_is(world: World, kind: str) -> None:
    seen = Counting()

    @world.app.agent("async", delays=[0.01])
    async def run(ctx: Context) -> Any:
        value = await ctx.step("look", seen, 7)
        if ctx.retry_count == 0:
            raise RuntimeError("after the record")
        return value

    @world.app.agent("sync", delays=[0.01])
    def run_in_thread(ctx: SyncContext) -> Any:
        value = ctx.step("look", seen, 7)
        if ctx.retry_count == 0:
            raise RuntimeError("after the record")
        return value

    await world.working()
    handle = await world.submitted(kind)
    await eventually(lambda: bool(seen.calls))
    await eventually(lambda: is_ended_after_a_moment(world, handle), "the second turn has ended")

    assert await handle.result(PATIENCE_SECONDS) == 7
    assert seen.calls == [7]
    assert [(fact.step, fact.result_type) for fact in await recorded(world, handle)] == [
        ("1:()look#1", "success")
    ]


async def test_every_command_of_a_task_has_an_id_of_its_own(world: World) -> None:
    @world.app.agent("busy", delays=[0.01])
    async def run(ctx: Context) -> int:
        await ctx.draft("so far")
        for number in range(3):
            await ctx.step("look", Counting(), (ctx.retry_count, number))
        if ctx.retry_count == 0:
            raise RuntimeError("after the records")
        return 1

    await world.working()
    handle = await world.submitted("busy")
    await eventually(lambda: is_ended_after_a_moment(world, handle), "the second turn has ended")

    events = await world.store.events_of_task(world.namespace, handle.id)
    said = ("task.created", "task.draft_kept", "step.recorded", "turn.ended")
    ids = [event.command_id for event in events if event.type in said]
    assert len(ids) == 1 + 2 + 3 + 2
    assert len(set(ids)) == len(ids)


async def test_the_first_run_and_a_replay_see_the_same_value(sqlite_world: World) -> None:
    world = sqlite_world
    seen: list[Any] = []

    def plan() -> Plan:
        return Plan("a", (1, 2))

    def loose() -> Any:
        return Plan("b", (3,))

    @world.app.agent("planner", delays=[0.01])
    async def run(ctx: Context) -> None:
        seen.append(
            [
                await ctx.step("typed", plan),
                await ctx.step("loose", loose),
                await ctx.step("said", loose, result=Plan),
            ]
        )
        if ctx.retry_count == 0:
            raise RuntimeError

    await world.working()
    handle = await world.submitted("planner")
    await eventually(lambda: is_ended_after_a_moment(world, handle))

    assert seen[0] == seen[1] == [Plan("a", (1, 2)), {"title": "b", "parts": [3]}, Plan("b", (3,))]


async def test_steps_of_one_name_are_told_apart_by_their_number(sqlite_world: World) -> None:
    @sqlite_world.app.agent("clerk")
    async def run(ctx: Context) -> list[int]:
        return [await ctx.step("square", lambda n=n: n * n) for n in range(3)]

    await sqlite_world.working()
    handle = await sqlite_world.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == [0, 1, 4]
    assert [fact.step for fact in await recorded(sqlite_world, handle)] == [
        "1:()square#1",
        "1:()square#2",
        "1:()square#3",
    ]


async def test_two_steps_of_one_name_at_once_are_refused(sqlite_world: World) -> None:
    @sqlite_world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step("same", asyncio.sleep, 0.01),
            ctx.step("same", asyncio.sleep, 0.01),
            return_exceptions=False,
        )

    await sqlite_world.working()
    with pytest.raises(TaskFailed) as failed:
        await (await sqlite_world.submitted("clerk")).result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "ambiguous_step"


async def test_a_replay_with_other_inputs_is_refused_where_asked_for(sqlite_world: World) -> None:
    world = sqlite_world
    seen = Counting()

    @world.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> Any:
        same = await ctx.step("same", seen, "x", check_inputs=True)
        await ctx.step("free", seen, ctx.retry_count)
        await ctx.step("checked", seen, ctx.retry_count, check_inputs=True)
        if ctx.retry_count == 0:
            raise RuntimeError
        return same

    await world.working()
    handle = await world.submitted("clerk")
    await eventually(lambda: is_ended_after_a_moment(world, handle))
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == ReplayMismatch.code
    assert seen.calls == ["x", 0, 0]


async def test_a_record_that_no_longer_fits_the_code_is_a_mismatch(sqlite_world: World) -> None:
    world = sqlite_world
    kinds: list[Any] = [int, str]

    @world.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> None:
        await ctx.step("one", lambda: 1, result=kinds[ctx.retry_count])
        raise RuntimeError

    await world.working()
    handle = await world.submitted("clerk")
    await eventually(lambda: is_ended_after_a_moment(world, handle))
    assert (await handle.task()).reason == "replay_mismatch"


async def test_a_value_that_is_not_of_the_promised_type_is_not_recorded(sqlite_world: World) -> None:
    def wrong() -> int:
        return "five"  # type: ignore[return-value]

    @sqlite_world.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.step("five", wrong)

    await sqlite_world.working()
    handle = await sqlite_world.submitted("clerk")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "bad_step_result"
    assert await recorded(sqlite_world, handle) == []


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_synchronous_step_never_blocks_the_event_loop(sqlite_world: World, kind: str) -> None:
    here = threading.get_ident()

    @sqlite_world.app.agent("async")
    async def run(ctx: Context) -> bool:
        return bool(await ctx.step("where", threading.get_ident) == here)

    @sqlite_world.app.agent("sync")
    def run_in_thread(ctx: SyncContext) -> bool:
        return bool(ctx.step("where", threading.get_ident) == here)

    await sqlite_world.working()
    assert await (await sqlite_world.submitted(kind)).result(PATIENCE_SECONDS) is False


async def test_steps_of_agents_that_hold_every_thread_still_run(sqlite_world: World) -> None:
    @sqlite_world.app.agent("clerk")
    def run(ctx: SyncContext, number: int) -> int:
        return int(ctx.step("double", lambda: number * 2))

    await sqlite_world.working(concurrency=2)
    handles = [await sqlite_world.submitted("clerk", n) for n in range(6)]
    assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [0, 2, 4, 6, 8, 10]


async def test_a_step_may_be_called_several_times(sqlite_world: World) -> None:
    seen = Counting()

    def fails_twice() -> str:
        seen("call")
        if len(seen.calls) < 3:
            raise ConnectionError("not yet")
        return "there"

    @sqlite_world.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> Any:
        return await ctx.step("ask", fails_twice, retry=RetryPolicy(max_retries=2, base_seconds=0.001))

    await sqlite_world.working()
    handle = await sqlite_world.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == "there"
    assert len(seen.calls) == 3


@pytest.mark.parametrize(
    ("error", "calls"),
    [(ValueError("again"), 2), (Fail("no"), 1), (KeyError("given up on"), 1), (StaleAttempt("x"), 1)],
)
async def test_a_step_is_called_again_only_where_that_may_help(
    sqlite_world: World, error: Exception, calls: int
) -> None:
    seen = Counting()

    def fails() -> None:
        seen("call")
        raise error

    @sqlite_world.app.agent("clerk", retries=0, give_up_on=KeyError)
    async def run(ctx: Context) -> None:
        try:
            await ctx.step("ask", fails, retry=RetryPolicy(max_retries=1, base_seconds=0.001))
        except type(error):
            await ctx.progress("seen")

    await sqlite_world.working()
    await (await sqlite_world.submitted("clerk")).result(PATIENCE_SECONDS)
    assert len(seen.calls) == calls


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"timeout": -1}, {"timeout": "5"}, {"retry": 0}, {"retry": "3"}, {"on_timeout": "x"}],
)
async def test_options_that_make_no_sense_are_refused(sqlite_world: World, options: dict[str, Any]) -> None:
    seen: list[str] = []

    @sqlite_world.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        try:
            await ctx.step("one", lambda: 1, **options)
        except UsageError as refusal:
            seen.append(refusal.message)

    await sqlite_world.working()
    await (await sqlite_world.submitted("clerk")).result(PATIENCE_SECONDS)
    assert next(iter(options)) in seen[0]


async def test_a_draft_is_kept_and_counts_as_progress(world: World) -> None:
    @world.app.agent("writer", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.draft({"chapter": 1})
        await ctx.draft({"chapter": 2})
        raise Fail("no more ideas")

    await world.working()
    handle = await world.submitted("writer")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert len(await world.facts(handle, "task.draft_kept")) == 2
    shown = await whole_task(world.store, world.namespace, handle.id)
    for deliverable in (failed.value.deliverable, shown["deliverable"]):
        assert (deliverable["kind"], deliverable["draft"]) == ("partial_deliverable", {"chapter": 2})
    assert failed.value.deliverable["retry_count"] == shown["retry_count"] == 1, (
        "the failure is counted in it"
    )
