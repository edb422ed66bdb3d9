"""Tools: executed by a tool worker as tasks of their own, with the deadlines that they ask for."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from endwell import AsyncHandle, Context, Fail, TaskFailed, UsageError
from endwell.errors import BadInput, ToolFailed, ToolTimeout
from endwell.model import commands as c
from endwell.model.card import call_id
from endwell.model.moments import SECOND
from endwell.model.task import Task, waits_of
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually


async def the_child(world: World, handle: AsyncHandle) -> Task:
    async def is_there() -> bool:
        return len(await world.store.children(world.namespace, handle.id)) == 1

    await eventually(is_there, "the tool was asked for")
    return (await world.store.children(world.namespace, handle.id))[0]


def knows_a_tool(world: World, **options: Any) -> None:
    @world.app.tool("search", **options)
    async def search(query: str) -> list[str]:
        return [f"{query} found"]

    @world.app.agent("asker")
    async def asker(ctx: Context) -> list[str]:
        found: list[str] = await ctx.tool("search", "gold")
        return found


async def test_a_tool_is_executed_by_a_worker_that_has_it(world: World) -> None:
    knows_a_tool(world)
    await world.working(agents=["asker"])
    handle = await world.submitted("asker")
    child = await the_child(world, handle)
    assert (child.agent, child.status) == ("search", "queued"), "this worker does not serve the tool"
    await world.working(await world.another_node(), agents=["search"])
    assert await handle.result(PATIENCE_SECONDS) == ["gold found"]
    spec = await world.store.agent(world.namespace, "search")
    assert spec is not None
    assert spec.kind == "tool"


async def test_a_tool_of_another_process_is_found_in_the_store(world: World) -> None:
    knows_a_tool(world)
    await world.working(await world.another_node(), agents=["search"])
    asker = world.app.agents["asker"]
    world.app.agents.clear()
    world.app.agents["asker"] = asker
    await world.working()
    assert await (await world.submitted("asker")).result(PATIENCE_SECONDS) == ["gold found"]


async def test_a_tool_call_leaves_its_card(world: World) -> None:
    knows_a_tool(world)
    await world.working()
    handle = await world.submitted("asker")
    await handle.result(PATIENCE_SECONDS)
    card = await world.store.card(world.namespace, call_id(f"{handle.id}.s.1:()search#1"))
    assert (card.kind, card.content) == ("tool.call", b'{"arguments":"gold","tool_name":"search"}')


@pytest.mark.covers("S0.29", "S0.30", "S0.81")
@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 30),
        ({"suspend_timeout": 120}, 120),
        ({"timeout": timedelta(minutes=5)}, 300),
        ({"suspend_timeout": 120, "timeout": 90}, 120),
        ({"suspend_timeout": 5, "timeout": 10}, 30),
    ],
)
async def test_a_tools_own_timeout_raises_its_deadline_and_never_lowers_it(
    world: World, options: dict[str, Any], seconds: int
) -> None:
    knows_a_tool(world, **options)
    await world.working(agents=["asker"])
    handle = await world.submitted("asker")
    task = await world.in_status(handle, "suspended")
    (wait,) = waits_of(task)
    assert wait.deadline - task.updated_at == seconds * SECOND
    child = await the_child(world, handle)
    assert child.ends_by - child.created_at == seconds * SECOND


@pytest.mark.covers("S0.29", "S0.30", "S0.81")
@pytest.mark.parametrize(("key", "seconds"), [("suspend_timeout_seconds", 120), ("timeout_seconds", 90)])
async def test_timeouts_of_a_tool_have_these_names_in_the_store(world: World, key: str, seconds: int) -> None:
    @world.app.agent("asker")
    async def asker(ctx: Context) -> None:
        await ctx.tool("search", "gold")

    spec = c.AgentSpec(name="search", kind="tool", options=json.dumps({key: seconds}))
    await world.store.commit_one(c.RegisterAgents(command_id="r", namespace=world.namespace, agents=(spec,)))
    await world.working()
    task = await world.in_status(await world.submitted("asker"), "suspended")
    assert waits_of(task)[0].deadline - task.updated_at == seconds * SECOND


async def test_the_caller_may_wait_longer_than_the_tool_asks_for(world: World) -> None:
    @world.app.agent("asker")
    async def asker(ctx: Context) -> None:
        await ctx.tool("oracle", timeout=timedelta(hours=1))

    await world.working()
    handle = await world.submitted("asker")
    task = await world.in_status(handle, "suspended")
    assert waits_of(task)[0].deadline - task.updated_at == 3600 * SECOND


async def test_a_tool_that_fails_for_good_raises(world: World) -> None:
    caught: list[ToolFailed] = []

    @world.app.tool("broken", retries=0)
    def broken() -> None:
        raise Fail("no ink")

    @world.app.agent("asker")
    async def asker(ctx: Context) -> str:
        try:
            await ctx.tool("broken")
        except ToolFailed as error:
            caught.append(error)
        return "went on"

    await world.working()
    assert await (await world.submitted("asker")).result(PATIENCE_SECONDS) == "went on"
    assert [(e.code, e.error["code"], e.error["message"]) for e in caught] == [
        ("tool_failed", "agent_gave_up", "no ink")
    ]


async def test_a_tool_whose_worker_is_away_times_out(world: World) -> None:
    @world.app.tool("search")
    async def search() -> None: ...

    @world.app.agent("asker")
    async def asker(ctx: Context) -> str:
        try:
            await ctx.tool("search")
        except ToolTimeout:
            return "no answer"
        return "?"

    worker = await world.working(agents=["asker"])
    handle = await world.submitted("asker")
    await the_child(world, handle)
    await world.in_status(handle, "suspended")
    world.clock.advance(31)
    await worker.watchdog.run_once()
    assert await handle.result(PATIENCE_SECONDS) == "no answer"


async def test_a_tool_call_that_was_answered_is_not_made_again(world: World) -> None:
    called = 0

    @world.app.tool("count")
    async def count() -> int:
        nonlocal called
        called += 1
        return called

    @world.app.agent("asker", retries=3, delays=[0])
    async def asker(ctx: Context) -> list[int]:
        numbers = [await ctx.tool("count"), await ctx.tool("count")]
        await ctx.wait_signal("go")
        if not failed:
            failed.append(1)
            raise ValueError("after the answers")
        return numbers

    failed: list[int] = []
    await world.working()
    handle = await world.submitted("asker")
    await world.client.signal(handle.id, "go")
    assert await handle.result(PATIENCE_SECONDS) == [1, 2]
    assert (called, (await handle.task()).retry_count) == (2, 1)


async def test_bad_arguments_are_refused_where_the_tool_is_called(world: World) -> None:
    knows_a_tool(world)

    @world.app.agent("careless", retries=0)
    async def careless(ctx: Context) -> str:
        with pytest.raises(BadInput) as refusal:
            await ctx.tool("search", {"not": "text"})
        with pytest.raises(BadInput) as second:
            await ctx.tool("asker")
        return f"{refusal.value.field} {second.value.hint}"

    await world.working()
    assert (
        await (await world.submitted("careless")).result(PATIENCE_SECONDS)
        == "payload ask it with ctx.call(…)"
    )


async def test_agents_and_tools_share_their_names(sqlite_world: World) -> None:
    knows_a_tool(sqlite_world)
    with pytest.raises(UsageError, match="tool 'search' is already registered"):
        sqlite_world.app.agent("search")
    with pytest.raises(UsageError, match="agent 'asker' is already registered"):
        sqlite_world.app.tool("asker")


async def test_a_result_of_the_wrong_type_is_refused(world: World) -> None:
    @world.app.agent("asker", retries=0)
    async def asker(ctx: Context) -> int:
        number: int = await ctx.tool("oracle", result=int)
        return number

    await world.working()
    handle = await world.submitted("asker")
    (wait,) = waits_of(await world.in_status(handle, "suspended"))
    await world.client.answer(wait.tool_call_id, "many")
    with pytest.raises(TaskFailed, match="result"):
        await handle.result(PATIENCE_SECONDS)


async def test_a_retry_asks_a_tool_again_that_failed_and_no_other(world: World) -> None:
    @world.app.agent("asker", retries=1, delays=[0])
    async def asker(ctx: Context) -> list[Any]:
        return [await ctx.tool("good"), await ctx.tool("moody")]

    await world.working()
    handle = await world.submitted("asker")
    await world.client.answer(f"{handle.id}.s.1:()good#1", "fine")
    first = await open_call(world, handle, "moody")
    await world.client.fail_call(first, "not today")
    second = await open_call(world, handle, "moody", other_than=first)
    await world.client.answer(second, "now then")
    assert await handle.result(PATIENCE_SECONDS) == ["fine", "now then"]
    assert (await handle.task()).retry_count == 1


async def open_call(world: World, handle: AsyncHandle, tool: str, other_than: str = "") -> str:
    """The open call of a tool, once there is one."""

    async def found() -> bool:
        return bool(await calls())

    async def calls() -> list[str]:
        opened = await world.store.open_calls(world.namespace, task_id=handle.id)
        return [call.tool_call_id for call in opened if call.tool == tool and call.tool_call_id != other_than]

    await eventually(found, f"{tool} is asked")
    return (await calls())[0]
