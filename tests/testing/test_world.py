"""Tests of the world for users: their agents in virtual time, with faults."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from endwell import Context, Done, Endwell, SyncContext, TaskFailed, TaskTimedOut, ToolFailed
from endwell.testing import Outside, ScriptedModel, World, every_crash


@pytest.fixture
def bank() -> Outside:
    """An outside world that counts payments."""
    return Outside()


@pytest.fixture
def app(bank: Outside) -> Endwell:
    app = Endwell("sqlite:///unused.db")

    async def pay(total: int, idempotency_key: str) -> str:
        await asyncio.sleep(1)
        return str(bank.change(idempotency_key, f"paid {total}"))

    async def find(key: str, *_: object) -> Any:
        found = bank.find(key)
        return None if found is None else Done(found)

    @app.agent("clerk", retries=3)
    async def clerk(ctx: Context, order: dict[str, Any]) -> str:
        total = await ctx.step("price", lambda: 3 * order["items"])
        return str(await ctx.effect("pay", pay, total, key=f"pay:{order['id']}", reconcile=find))

    return app


ORDER = {"id": "42", "items": 5}


async def test_a_task_runs_in_virtual_time(app: Endwell) -> None:
    with World(app) as world:
        order = await world.submit("clerk", ORDER)
        assert await order.result() == "paid 15"


async def test_hours_pass_in_no_time_and_a_sleeping_task_wakes(world: World) -> None:
    @world.agent("sleeper")
    async def sleeper(ctx: Context) -> str:
        await ctx.sleep(3 * 3600)
        return "awake"

    task = await world.submit("sleeper")
    await world.advance(hours=2.9)
    assert await task.status() == "suspended"
    await world.advance(hours=0.2)
    assert await task.status() == "succeeded"


async def test_a_patient_task_that_wakes_fifty_times_is_no_runaway(world: World) -> None:
    @world.agent("patient")
    async def patient(ctx: Context) -> str:
        for _ in range(50):
            await ctx.sleep(30)
        return "at last"

    task = await world.submit("patient")
    assert await task.result() == "at last"
    assert (await task.task()).dispatch_count == 1
    assert (await task.history()).count("task.resumed") == 50


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_dies_around_the_record_of_an_effect_pays_once(
    app: Endwell, bank: Outside, when: Any
) -> None:
    with World(app) as world:
        world.crash_at("pay", when)
        order = await world.submit("clerk", ORDER)
        assert await order.result() == "paid 15"
        assert len(world.crashes) == 1
    assert bank.calls == {"pay:42": 1}


async def test_a_worker_that_dies_with_nothing_but_an_intent_pays_once(app: Endwell, bank: Outside) -> None:
    with World(app) as world:
        world.crash_before_effect("pay")
        assert await (await world.submit("clerk", ORDER)).result() == "paid 15"
        assert len(world.crashes) == 1
    assert bank.calls == {"pay:42": 1}


async def test_a_worker_may_die_at_every_commit(app: Endwell, bank: Outside) -> None:
    worlds = 0
    for world in every_crash(app):
        bank.calls.clear()
        bank.values.clear()
        assert await (await world.submit("clerk", ORDER)).result() == "paid 15"
        assert bank.calls == {"pay:42": 1}
        worlds += bool(world.crashes)
    assert worlds >= 6


async def test_a_frozen_worker_wakes_as_a_stale_writer_and_changes_nothing(
    app: Endwell, bank: Outside
) -> None:
    with World(app, workers=2) as world:
        world.crash_at("price", "after")  # both know the task now
        order = await world.submit("clerk", ORDER)
        await world.advance(seconds=0.5)
        for name in ("worker-1", "worker-2"):
            world.freeze_worker(name, seconds=200 if name == "worker-1" else 1)
        assert await order.result() == "paid 15"
        await world.advance(minutes=10)
        assert (await order.history()).count("task.succeeded") == 1
    assert bank.calls == {"pay:42": 1}


async def test_without_doorbells_polling_finds_the_work(app: Endwell) -> None:
    with World(app) as world:
        world.lose_doorbells()
        order = await world.submit("clerk", ORDER)
        await world.advance(minutes=2)
        assert await order.status() == "succeeded"


async def test_doubled_rings_and_deliveries_change_nothing(app: Endwell, bank: Outside) -> None:
    with World(app) as world:
        world.double_doorbells()
        order = await world.submit("clerk", ORDER)
        await order.result()
        before = [kind for kind in await order.history() if kind != "write.refused"]
        assert await world.repeat_deliveries() >= 3
        after = [kind for kind in await order.history() if kind != "write.refused"]
        assert before == after
    assert bank.calls == {"pay:42": 1}


async def test_tools_answer_by_script(world: World) -> None:
    search = (
        world.tool("search").fails("no network").returns(lambda asked: asked["q"].upper(), after_seconds=5)
    )

    @world.agent("finder")
    async def finder(ctx: Context) -> list[Any]:
        found = []
        for word in ("one", "two"):
            try:
                found.append(await ctx.tool("search", {"q": word}))
            except ToolFailed as error:
                found.append(str(error))
        return found

    first, second = await (await world.submit("finder")).result()
    assert "no network" in first
    assert second == "TWO"
    assert search.calls == [{"q": "one"}, {"q": "two"}]


async def test_a_tool_that_never_answers_ends_in_a_timeout(world: World) -> None:
    world.tool("search").never_answers()

    @world.agent("finder", retries=0)
    async def finder(ctx: Context) -> Any:
        return await ctx.tool("search", timeout=60)

    with pytest.raises(TaskFailed, match="search"):
        await (await world.submit("finder")).result()


async def test_of_two_answers_the_first_counts(world: World) -> None:
    world.tool("search").answers_twice("first", "second")

    @world.agent("finder")
    async def finder(ctx: Context) -> Any:
        return await ctx.tool("search")

    assert await (await world.submit("finder")).result() == "first"


async def test_a_recorded_model_call_is_not_made_again_after_a_crash(world: World) -> None:
    model = ScriptedModel("a plan", "a patch")

    @world.agent("coder")
    async def coder(ctx: Context) -> list[str]:
        return [await ctx.step("plan", model, "plan it"), await ctx.step("patch", model, "do it")]

    world.crash_at("plan", "after")
    assert await (await world.submit("coder")).result() == ["a plan", "a patch"]
    assert model.calls == [("plan it",), ("do it",)]
    assert len(world.crashes) == 1


async def test_agents_without_await_run_in_the_world_too(world: World) -> None:
    @world.agent("adder")
    def adder(ctx: SyncContext, n: int) -> int:
        ctx.sleep(60)
        one, two = ctx.gather(lambda: ctx.step("a", lambda: n), lambda: ctx.step("b", lambda: 1))
        return int(one + two)

    world.crash_at("a", "after")
    assert await (await world.submit("adder", 4)).result() == 5


async def test_a_task_that_hangs_ends_by_its_deadline(world: World) -> None:
    @world.agent("hangs", retries=0)
    async def hangs() -> None:
        await asyncio.sleep(10**9)

    task = await world.submit("hangs", deadline=120)
    with pytest.raises(TaskTimedOut):
        await task.result()


async def test_people_decide_through_the_worlds_client(world: World) -> None:
    @world.agent("merger")
    async def merger(ctx: Context) -> str:
        return (await ctx.approve("Merge?", within=3600)).by[0]

    task = await world.submit("merger")
    await world.advance(minutes=5)
    (asked,) = (await task.why())["waiting_for"]
    await world.ask(lambda client: client.approve(asked["id"], by="ada"))
    assert await task.result() == "ada"


async def test_an_agent_that_pays_twice_is_found(app: Endwell, bank: Outside) -> None:
    world = World(app)

    @world.agent("careless")
    async def careless(ctx: Context) -> None:
        for _ in range(2):
            world.outside.change("pay:1", "paid")
        await ctx.progress("paid")

    try:
        task = await world.submit("careless")
        with pytest.raises(AssertionError, match="took place 2 times"):
            await task.result()
    finally:
        world.close(judge=False)


async def test_the_same_world_takes_the_same_course(app: Endwell, bank: Outside) -> None:
    traces = []
    for _ in range(2):
        bank.calls.clear()
        bank.values.clear()
        with World(app, seed=7, workers=3) as world:
            world.crash_at_commit(2)
            await (await world.submit("clerk", ORDER)).result()
            traces.append(world.trace)
    assert traces[0] == traces[1]
