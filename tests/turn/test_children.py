"""A tree of tasks: every end of a child comes back to its parent, and a parent's end settles its children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from endwell import AsyncHandle, Context, Fail, TaskFailed
from endwell.errors import BadInput, CallFailed, UnknownAgent
from endwell.model.card import child_id
from endwell.model.moments import SECOND
from endwell.model.task import Task, waits_of
from endwell.operate.questions import tree
from endwell.policy.submitting import ChildCall, child_order
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually, terminal


@dataclass
class Sum:
    total: int


async def children(world: World, handle: AsyncHandle) -> list[Task]:
    return await world.store.children(world.namespace, handle.id)


async def child_in(world: World, handle: AsyncHandle, status: str) -> Task:
    """The only child, once it has that status."""

    async def reached() -> bool:
        return [child.status for child in await children(world, handle)] == [status]

    await eventually(reached, f"the child is {status}")
    return (await children(world, handle))[0]


async def test_a_called_agent_returns_its_result_in_its_own_type(world: World) -> None:
    @world.app.agent("adder")
    async def adder(numbers: list[int]) -> Sum:
        return Sum(sum(numbers))

    @world.app.agent("boss")
    async def boss(ctx: Context) -> int:
        first: Sum = await ctx.call("adder", [1, 2])
        second = await ctx.call("adder", [first.total, 4], result=dict)
        return int(second["total"])

    await world.working()
    handle = await world.submitted("boss")
    assert await handle.result(PATIENCE_SECONDS) == 7
    first, second = await children(world, handle)
    assert {first.status, second.status} == {"succeeded"}
    assert (first.parent_id, first.agent) == (handle.id, "adder")
    assert first.ends_by <= (await handle.task()).ends_by


async def test_calls_of_one_gather_run_beside_each_other_and_hold_no_slot(world: World) -> None:
    @world.app.agent("double")
    async def double(number: int) -> int:
        return 2 * number

    @world.app.agent("boss")
    async def boss(ctx: Context) -> list[int]:
        return await ctx.gather(*(ctx.call("double", 7) for _ in range(5)))

    await world.working(concurrency=1)
    handle = await world.submitted("boss")
    assert await handle.result(PATIENCE_SECONDS) == [14] * 5
    assert len(await children(world, handle)) == 5, "each its own child, with equal arguments"
    assert (await world.history(handle)).count("task.suspended") == 1


async def test_a_child_that_fails_is_an_exception_that_says_how(world: World) -> None:
    caught: list[CallFailed] = []

    @world.app.agent("bad")
    async def bad(ctx: Context, payload: Any) -> None:
        await ctx.draft({"page": payload})
        raise Fail("no paper left")

    @world.app.agent("boss")
    async def boss(ctx: Context) -> str:
        try:
            await ctx.call("bad", 1)
        except CallFailed as error:
            caught.append(error)
        return "went on"

    await world.working()
    assert await (await world.submitted("boss")).result(PATIENCE_SECONDS) == "went on"
    (error,) = caught
    assert (error.status, error.error["code"], error.error["message"]) == (
        "failed",
        "agent_gave_up",
        "no paper left",
    )
    assert (error.deliverable["kind"], error.deliverable["draft"]) == ("partial_deliverable", {"page": 1})


async def test_a_child_that_is_cancelled_wakes_its_parent(world: World) -> None:
    @world.app.agent("sleeper")
    async def sleeper(ctx: Context) -> None:
        await ctx.wait_signal("never")

    @world.app.agent("boss")
    async def boss(ctx: Context) -> str:
        try:
            await ctx.call("sleeper")
        except CallFailed as error:
            return error.status
        return "?"

    await world.working()
    handle = await world.submitted("boss")
    child = await child_in(world, handle, "suspended")
    await (await world.client.task(child.id)).cancel()
    assert await handle.result(PATIENCE_SECONDS) == "canceled"


async def test_a_parent_wakes_although_its_childs_message_was_lost(world: World) -> None:
    @world.app.agent("helper")
    async def helper() -> str:
        return "done"

    @world.app.agent("boss")
    async def boss(ctx: Context) -> str:
        return str(await ctx.call("helper"))

    boss_worker = await world.working(agents=["boss"])
    handle = await world.submitted("boss")
    await world.in_status(handle, "suspended")
    helper_node = await world.another_node()
    # this worker dies each time right after the commit that ends a task: nothing that follows is handed in
    helper_node.store.commit = helper_node.store._commit  # type: ignore[method-assign]
    await world.working(helper_node, agents=["helper"])
    await child_in(world, handle, "succeeded")
    await boss_worker.watchdog.run_once()
    assert await handle.result(PATIENCE_SECONDS) == "done"


async def test_a_call_that_takes_too_long_ends_and_so_does_its_child(world: World) -> None:
    @world.app.agent("sleeper")
    async def sleeper(ctx: Context) -> None:
        await ctx.wait_signal("never")

    @world.app.agent("boss")
    async def boss(ctx: Context) -> str:
        try:
            await ctx.call("sleeper", timeout=60)
        except CallFailed as error:
            return error.status
        return "?"

    worker = await world.working()
    handle = await world.submitted("boss")
    child = await child_in(world, handle, "suspended")
    (wait,) = waits_of(await handle.task())
    assert child.ends_by - child.created_at == 60 * SECOND
    assert wait.deadline >= child.ends_by
    world.clock.advance(61)
    pmo = await world.supervisor()
    await worker.watchdog.run_once()

    async def child_ended() -> bool:
        await pmo.run_once()
        return (await world.store.task(world.namespace, child.id)).is_ended

    await eventually(child_ended, "the child ends")
    assert await handle.result(PATIENCE_SECONDS) == "timeout"
    ended = await world.store.task(world.namespace, child.id)
    by_its_clock, with_its_parent = ("timeout", "ends_by"), ("cancelled", "parent_ended")
    assert (ended.status, ended.reason) in (by_its_clock, with_its_parent), "whichever came first"


@pytest.mark.parametrize(
    ("policy", "status", "event"),
    [("cancel", "cancelled", "task.cancelled"), ("leave", "suspended", "task.orphaned")],
)
async def test_the_end_of_a_parent_settles_its_children_as_the_call_said(
    world: World, policy: Any, status: str, event: str
) -> None:
    @world.app.agent("sleeper")
    async def sleeper(ctx: Context) -> str:
        return str(await ctx.wait_signal("go"))

    @world.app.agent("boss")
    async def boss(ctx: Context) -> None:
        await ctx.call("sleeper", on_parent_end=policy)

    await world.working()
    handle = await world.submitted("boss")
    child = await child_in(world, handle, "suspended")
    await handle.cancel()
    after = await child_in(world, handle, status)
    orphan = await world.client.task(child.id)
    assert event in await world.history(orphan)
    assert after.owner == world.app.owner
    if policy == "leave":
        await world.client.signal(child.id, "go", "alone")
        assert await orphan.result(PATIENCE_SECONDS) == "alone"
    assert terminal(await world.history(handle)) == ["task.cancelled"]


async def test_the_pmo_settles_children_whose_parents_end_was_not_delivered(world: World) -> None:
    @world.app.agent("sleeper")
    async def sleeper(ctx: Context) -> None:
        await ctx.wait_signal("never")

    @world.app.agent("boss")
    async def boss(ctx: Context) -> None:
        await ctx.call("sleeper")

    await world.working()
    handle = await world.submitted("boss")
    await child_in(world, handle, "suspended")
    node = await world.another_node()
    node.store.commit = node.store._commit  # type: ignore[method-assign]  # what follows is lost
    await (await node.client.task(handle.id)).cancel()
    await child_in(world, handle, "suspended")
    world.clock.advance(6)
    await (await world.supervisor()).inbox.run_once()
    assert (await child_in(world, handle, "cancelled")).reason == "parent_ended"


async def test_a_chain_of_calls_is_finite(world: World) -> None:
    depths: list[int] = []

    @world.app.agent("deeper", retries=0)
    async def deeper(ctx: Context, depth: int) -> int:
        depths.append(depth)
        try:
            return int(await ctx.call("deeper", depth + 1))
        except BadInput as refusal:
            return depth if refusal.code == "calls_too_deep" else -1

    @world.app.agent("careless", retries=0)
    async def careless(ctx: Context) -> Any:
        return await ctx.call("careless")

    await world.working()
    assert await (await world.submitted("deeper", 0)).result(PATIENCE_SECONDS) == 20
    with pytest.raises(TaskFailed) as failed:
        await (await world.submitted("careless")).result(PATIENCE_SECONDS)
    message = failed.value.deliverable["error"]["message"]
    assert message.startswith("the call of careless ended as failed: ")
    assert "may be 20 deep" in message, "however long the chain is, its cause is named at the top"


async def test_a_call_to_a_key_that_an_ancestor_holds_is_refused(world: World) -> None:
    @world.app.agent("keeper", retries=3)
    async def keeper(ctx: Context, left: int) -> str:
        return str(await ctx.call("middle", left))

    @world.app.agent("middle", retries=3)
    async def middle(ctx: Context, left: int) -> str:
        try:
            return str(await ctx.call("keeper/same", left))
        except BadInput as refusal:
            return f"{refusal.code}: {refusal.message}"

    await world.working()
    handle = await world.submitted("keeper/same", 1)
    assert (await handle.result(PATIENCE_SECONDS)).startswith("key_held_by_ancestor: keeper/same is held")


async def test_a_call_of_an_unknown_agent_raises_in_the_callers_code(world: World) -> None:
    @world.app.agent("boss", retries=0)
    async def boss(ctx: Context) -> None:
        await ctx.call("stranger")

    @world.app.tool("hammer")
    async def hammer() -> None: ...

    @world.app.agent("confused", retries=0)
    async def confused(ctx: Context) -> str:
        with pytest.raises(UnknownAgent):
            await ctx.call("stranger")
        with pytest.raises(BadInput) as refusal:
            await ctx.call("hammer")
        return refusal.value.hint or ""

    await world.working()
    with pytest.raises(TaskFailed, match="stranger"):
        await (await world.submitted("boss")).result(PATIENCE_SECONDS)
    assert "ctx.tool" in await (await world.submitted("confused")).result(PATIENCE_SECONDS)


async def test_a_bad_payload_is_refused_in_the_callers_code(world: World) -> None:
    @world.app.agent("strict")
    async def strict(number: int) -> int:
        return number

    @world.app.agent("boss")
    async def boss(ctx: Context) -> str:
        try:
            await ctx.call("strict", "five")
        except BadInput as refusal:
            return str(refusal.field)
        return "?"

    await world.working()
    assert await (await world.submitted("boss")).result(PATIENCE_SECONDS) == "payload"


async def test_a_turn_that_runs_again_finds_its_living_child(world: World) -> None:
    """The first worker dies between the child's submission and its own suspension."""
    asked: list[int] = []

    @world.app.agent("helper")
    async def helper(ctx: Context, number: int) -> int:
        await ctx.wait_signal("go")
        return number

    @world.app.agent("boss", retries=3, delays=[0])
    async def boss(ctx: Context) -> int:
        asked.append(len(asked) + 1)
        return int(await ctx.call("helper", asked[-1]))

    await world.registered("helper", "boss")
    handle = await world.submitted("boss")
    call = f"{handle.id}.s.1:()helper#1"
    # what the dead worker had handed in
    spec = world.app.agents["helper"].spec()
    order = ChildCall(tool_call_id=call, agent_key=None, within=60 * SECOND)
    await world.store.commit_one(child_order(await handle.task(), order, spec, 99, None))
    await world.working()
    await world.in_status(handle, "suspended")
    await world.client.signal(child_id(call), "go")

    assert await handle.result(PATIENCE_SECONDS) == 99, (
        "the child that was there already, although the payload differs"
    )
    assert [child.id for child in await children(world, handle)] == [child_id(call)]


async def test_the_tree_shows_who_asked_whom(world: World) -> None:
    @world.app.agent("leaf")
    async def leaf() -> None: ...

    @world.app.agent("branch")
    async def branch(ctx: Context) -> None:
        await ctx.gather(ctx.call("leaf"), ctx.call("leaf"))

    @world.app.agent("root")
    async def root(ctx: Context) -> None:
        await ctx.call("branch")

    await world.working()
    handle = await world.submitted("root")
    await handle.result(PATIENCE_SECONDS)
    found = await tree(world.store, world.namespace, handle.id)
    assert (found["agent"], found["status"], found["is_cut"]) == ("root", "succeeded", False)
    (below,) = found["children"]
    assert [child["agent"] for child in below["children"]] == ["leaf", "leaf"]
