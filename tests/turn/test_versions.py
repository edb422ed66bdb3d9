"""A task whose agent has a new version: it continues, or is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from endwell import AsyncHandle, Context, TaskFailed
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually


class TestVersions:
    async def interrupted(self, world: World, **options: Any) -> AsyncHandle:
        """A task that version 1 has suspended, and a worker of version 2."""

        async def greet(ctx: Context) -> str:
            return str(await ctx.wait_signal("go"))

        world.app.agent("greeter", version="1", **options)(greet)
        old = await world.started_worker()
        handle = await world.submitted("greeter")
        await world.brought_to(old, handle, "suspended")
        await old._session.close()
        del world.app.agents["greeter"]
        world.app.agent("greeter", version="2", **options)(greet)
        await world.working(await world.another_node())
        await world.client.signal(handle.id, "go", "hello")
        return handle

    async def test_a_task_continues_under_a_new_version(self, world: World) -> None:
        handle = await self.interrupted(world)
        assert await handle.result(PATIENCE_SECONDS) == "hello"
        versions = [fact.agent_version for fact in await world.facts(handle, "task.claimed")]
        assert versions == ["1", "2"]

    async def test_an_agent_may_refuse_tasks_of_another_version(self, world: World) -> None:
        handle = await self.interrupted(world, on_version_change="refuse", retries=3)
        with pytest.raises(TaskFailed, match="version 1 of greeter recorded"):
            await handle.result(PATIENCE_SECONDS)
        task = await handle.task()
        assert (task.reason, task.dead_letter) == ("version_mismatch", "open")

    async def test_a_task_without_recorded_steps_starts_under_any_version(self, world: World) -> None:
        async def greet() -> str:
            if not tried.is_set():
                tried.set()
                raise ValueError("not yet")
            return "hello"

        tried = asyncio.Event()
        options: dict[str, Any] = {"on_version_change": "refuse", "retries": 1, "delays": [0]}
        world.app.agent("greeter", version="1", **options)(greet)
        old = await world.started_worker()
        handle = await world.submitted("greeter")
        assert await old.run_once()
        await eventually(tried.is_set, "version 1 has tried")
        await old.run_once()
        del world.app.agents["greeter"]
        world.app.agent("greeter", version="2", **options)(greet)
        await world.working(await world.another_node())
        assert await handle.result(PATIENCE_SECONDS) == "hello"
