"""Agents that repeat themselves while looking busy: nudged, then stopped; waiting is not counted."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from endwell import Context, EndwellError, SyncContext, TaskFailed
from endwell.model.task import Task
from endwell.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually, terminal

THREE: dict[str, object] = {"progress.repeat_limit": 3}


def look_up(query: str) -> str:
    return "nothing found"


def fail(number: int) -> None:
    raise ValueError("no such page")


async def asked_again_and_again(ctx: Context) -> str:
    for _ in range(50):
        await ctx.step("look-up", look_up, "the same")
        if heard := await ctx.nudges():
            return heard[0]
    return "never heard"


async def deaf(ctx: Context) -> str:
    for _ in range(50):
        await ctx.step("look-up", look_up, "the same")
    return "never stopped"


async def failing_again_and_again(ctx: Context) -> str:
    for number in range(50):
        try:
            await ctx.step("fetch", fail, number)
        except ValueError:
            continue
    return "never stopped"


async def getting_on(ctx: Context) -> str:
    for number in range(50):
        await ctx.step("look-up", look_up, str(number))
        await ctx.step("note", lambda: None)  # who can tell what a lambda is given?
    return "done"


async def ended(url: str, function: Any, settings: dict[str, object]) -> tuple[Task, Any]:
    """The task of an agent with that function, once it has ended."""
    async with World(url, settings=settings) as world:
        world.app.agent("looper")(function)
        await world.working()
        handle = await world.submitted("looper")
        await world.client.wait_ended(handle.id, 20)
        events = [(event.type, event.fact) for event in await world.events(handle)]
        inbox = await world.store.inbox_page(world.namespace, task_id=handle.id)
        return await handle.task(), (events, inbox, await _value(handle))


async def _value(handle: Any) -> Any:
    try:
        return await handle.result(PATIENCE_SECONDS)
    except TaskFailed as failed:
        return failed


async def test_a_repeating_agent_can_read_its_nudges(store_url: str) -> None:
    task, (events, inbox, value) = await ended(store_url, asked_again_and_again, THREE)
    assert task.status == "succeeded"
    assert "the step look-up with the same arguments, 3 times in a row" in value
    (message,) = [one for one in inbox if one.message_type == "nudge"]
    assert message.status == "consumed"
    assert [kind for kind, _ in events].count("task.nudged") == 1


async def test_an_agent_that_ignores_its_nudges_is_stopped_at_twice_the_limit(store_url: str) -> None:
    task, (events, _, value) = await ended(store_url, deaf, THREE)
    kinds = [kind for kind, _ in events]
    assert (task.status, task.reason, task.dead_letter) == ("failed", "no_progress", "open")
    assert (kinds.count("step.recorded"), kinds.count("task.nudged")) == (6, 1)
    assert terminal(kinds) == ["task.failed"]
    assert "went round in circles" in str(value)


async def test_the_same_error_again_and_again_counts_too(sqlite_url: str) -> None:
    task, (_, _, value) = await ended(sqlite_url, failing_again_and_again, THREE)
    assert (task.status, task.reason) == ("failed", "no_progress")
    assert "the same error of fetch (ValueError: no such page), 6 times in a row" in str(value)


async def gathering(ctx: Context) -> str:
    """Many branches, some of them gathers again, that all meet the same error; then the agent continues."""

    async def part(number: int) -> None:
        try:
            await ctx.step("fetch", fail, number)
        except ValueError:
            return

    await ctx.gather(*(partial(part, number) for number in range(30)))
    inner = (partial(ctx.gather, *(partial(part, number) for number in range(5))) for _ in range(5))
    await ctx.gather(*inner)
    return "went on"


async def gathering_again_and_again(ctx: Context) -> str:
    for _ in range(50):
        with suppress(ValueError):
            await ctx.gather(*(ctx.step("fetch", fail, number) for number in range(4)))
    return "never stopped"


async def repeating_in_branches(ctx: Context) -> list[Any]:
    return await ctx.gather(*(partial(failing_again_and_again, ctx) for _ in range(3)))


async def test_an_error_that_branches_meet_beside_each_other_counts_once(sqlite_url: str) -> None:
    task, (events, _, value) = await ended(sqlite_url, gathering, THREE)
    assert (task.status, value) == ("succeeded", "went on")
    assert "task.nudged" not in [kind for kind, _ in events]


@pytest.mark.parametrize("function", [gathering_again_and_again, repeating_in_branches])
async def test_an_error_that_branches_meet_again_and_again_counts_each_time(
    sqlite_url: str, function: Any
) -> None:
    task, (_, _, value) = await ended(sqlite_url, function, THREE)
    assert (task.status, task.reason) == ("failed", "no_progress")
    assert "the same error of fetch (ValueError: no such page), 6 times in a row" in str(value)


async def test_an_agent_that_makes_progress_is_not_nudged(sqlite_url: str) -> None:
    task, (events, _, value) = await ended(sqlite_url, getting_on, THREE)
    assert (task.status, value) == ("succeeded", "done")
    assert "task.nudged" not in [kind for kind, _ in events]


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"progress.repeat_limit": 0}, "succeeded"),
        ({"progress.repeat_limit": 3, "progress.action": "nudge"}, "succeeded"),
    ],
)
async def test_the_guard_can_be_switched_off_or_told_only_to_nudge(
    sqlite_url: str, settings: dict[str, object], status: str
) -> None:
    task, (events, _, _) = await ended(sqlite_url, deaf, settings)
    assert task.status == status
    assert [kind for kind, _ in events].count("task.nudged") == ("progress.action" in settings)


async def test_a_def_agent_is_stopped_as_well(sqlite_url: str) -> None:
    def blocking(ctx: SyncContext) -> str:
        for _ in range(50):
            ctx.step("look-up", look_up, "the same")
            ctx.nudges()
        return "never stopped"

    task, _ = await ended(sqlite_url, blocking, THREE)
    assert (task.status, task.reason) == ("failed", "no_progress")


async def test_the_same_tool_call_counts_across_suspensions(sqlite_url: str) -> None:
    """Each answer resumes the turn in a new attempt; the row of calls is seen again in the records."""
    async with World(sqlite_url, settings=THREE) as world:

        @world.app.tool("search")
        async def search(arguments: Any) -> str:
            return "nothing"

        @world.app.agent("looper")
        async def looper(ctx: Context) -> None:
            while True:
                await ctx.tool("search", {"q": "the same"})

        await world.working()
        handle = await world.submitted("looper")
        task = await world.client.wait_ended(handle.id, 20)
        assert (task.status, task.reason) == ("failed", "no_progress")
        (nudged,) = await world.facts(handle, "task.nudged")
        assert nudged.about == "the call of search with the same arguments, 3 times in a row"
        assert len(await world.store.children(world.namespace, handle.id)) == 5, "the sixth is not made"


async def test_polling_with_sleeps_between_is_waiting_for_something_named(sqlite_url: str) -> None:
    async with World(sqlite_url, settings=THREE) as world:

        @world.app.agent("poller")
        async def poller(ctx: Context) -> str:
            for _ in range(8):
                await ctx.step("look", look_up, "the same")
                await ctx.sleep(0.001)
            return "patient"

        await world.working()
        handle = await world.submitted("poller")

        async def over() -> bool:
            world.clock.advance(1)
            return (await handle.task()).is_ended

        await eventually(over)
        assert await handle.result(PATIENCE_SECONDS) == "patient"


async def test_progress_without_news_is_nudged_then_stopped(sqlite_url: str) -> None:
    """The agent's own clock is the test's: each sign comes ten minutes after the last one."""
    async with World(sqlite_url) as world:
        heard: list[str] = []

        @world.app.agent("idler")
        async def idler(ctx: Context) -> str:
            for _ in range(20):
                world.clock.advance(600)
                await ctx.progress("still at it")
                heard.extend(await ctx.nudges())
            return "never stopped"

        await steady(world)
        handle = await world.submitted("idler")
        task = await world.client.wait_ended(handle.id, 20)
        assert (task.status, task.reason) == ("failed", "no_progress")
        assert heard
        assert "nothing new for 1800 s" in heard[0]


async def test_new_notes_and_new_steps_are_news(sqlite_url: str) -> None:
    async with World(sqlite_url) as world:

        @world.app.agent("trainer")
        async def trainer(ctx: Context) -> str:
            for epoch in range(20):
                world.clock.advance(600)
                await ctx.progress(f"epoch {epoch}")
            for epoch in range(10):
                world.clock.advance(600)
                await ctx.step("save", look_up, str(epoch))
                await ctx.progress("saving")
            return "trained"

        await steady(world)
        handle = await world.submitted("trainer")
        assert await handle.result(PATIENCE_SECONDS) == "trained"


async def steady(world: World) -> Worker:
    """A worker whose lease outlasts the leaps of the test's clock."""
    world.app.settings = _with_lease(world)
    return await world.working()


def _with_lease(world: World) -> Any:
    from endwell.settings import override

    return override(world.app.settings, {"worker.lease_seconds": 86_400.0}, source="test")


async def test_a_waiting_agent_is_not_judged(sqlite_url: str) -> None:
    """Suspended for half its life, a task has neither a nudge nor a sign of life to give."""
    async with World(sqlite_url, settings=THREE) as world:

        @world.app.agent("waiter")
        async def waiter(ctx: Context) -> Any:
            return await ctx.wait_signal("go")

        await world.working()
        handle = await world.submitted("waiter")
        await world.in_status(handle, "suspended")
        world.clock.advance(40_000)
        await (await world.supervisor()).run_once()
        assert "task.nudged" not in await world.history(handle)
        await world.client.signal(handle.id, "go", 1)
        assert await handle.result(PATIENCE_SECONDS) == 1


async def test_a_bad_setting_is_refused_with_what_is_allowed(sqlite_url: str) -> None:
    with pytest.raises(EndwellError, match="must be one of stop, nudge"):
        World(sqlite_url, settings={"progress.action": "shout"})
