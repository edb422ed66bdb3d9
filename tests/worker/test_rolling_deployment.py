"""Workers of two versions side by side: a task that refuses another version stays with its own."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from endwell import Context
from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.runtime import SystemClock
from endwell.worker.store_source import OtherVersions
from tests.patience import PATIENCE_SECONDS
from tests.support.world import TINY, World, eventually

TASKS = 12


class Deployment:
    """One agent in one version, in an installation of its own on the shared store."""

    def __init__(self, url: str, namespace: str, version: str, *, sleep_seconds: float = 0.05) -> None:
        self.world = World(url, settings=TINY, clock=SystemClock())
        self.world.app.namespace = namespace
        self.world.namespace = namespace
        self.version = version
        self.ran: list[str] = []

        @self.world.app.agent("clerk", version=version, on_version_change="refuse", retries=3, delays=[0])
        async def clerk(ctx: Context, number: int) -> str:
            first = await ctx.step("first", self.note)
            if await ctx.step("asked", self.note) == first:
                await ctx.sleep(sleep_seconds)
            return f"{first} {await ctx.step('last', self.note)}"

    async def note(self) -> str:
        self.ran.append(self.version)
        return self.version


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_task_stays_with_the_live_workers_of_its_version(store_url: str, concurrency: int) -> None:
    namespace = f"test-{uuid.uuid4().hex}"
    old, new = (Deployment(store_url, namespace, version) for version in ("v1", "v2"))
    async with old.world, new.world:
        worker = await old.world.working(concurrency=concurrency)
        begun = await old.world.client.submit_many("clerk", range(TASKS), deadline=3600)
        await eventually(lambda: len(old.ran) >= 2, "the old version has begun some")
        await new.world.working(concurrency=concurrency)
        later = await new.world.client.submit_many("clerk", range(TASKS), deadline=3600)
        results = await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in (*begun, *later)))
        assert all(result in ("v1 v1", "v2 v2") for result in results)
        assert worker.refused == 0


async def test_a_task_ends_when_no_live_worker_serves_its_version(store_url: str) -> None:
    namespace = f"test-{uuid.uuid4().hex}"
    old, new = (Deployment(store_url, namespace, version, sleep_seconds=1) for version in ("v1", "v2"))
    async with new.world:
        async with old.world:
            await old.world.working()
            handle = await old.world.submitted("clerk", 1, deadline=3600)
            await old.world.in_status(handle, "suspended")
        await new.world.working()
        pmo = await new.world.supervisor()
        run = asyncio.get_running_loop().create_task(pmo.run())
        again = await new.world.client.task(handle.id)
        with pytest.raises(EndwellError, match="version"):
            await again.result(PATIENCE_SECONDS)
        pmo.stop()
        await run


async def test_a_version_with_a_lapsed_lease_counts_as_served_until_its_session_is_closed(
    world: World,
) -> None:
    """After an outage all leases have lapsed, and a worker of the new version may be back first."""

    @world.app.agent("clerk", version="v2", on_version_change="refuse")
    async def clerk(number: int) -> int:
        return number

    about: dict[str, Any] = {"namespace": world.namespace, "actor": "test", "session_id": "old"}
    session = c.OpenSession(
        command_id=world.app.runtime.ids.new(),
        kind="worker",
        name="old",
        host="elsewhere",
        pid=1,
        agents=("clerk",),
        versions={"clerk": "v1"},
        concurrency=1,
        lease=30 * SECOND,
        **about,
    )
    await world.store.commit_one(session)
    others = OtherVersions(world.store, world.namespace, world.app.agents)
    world.clock.advance(100)
    assert await others.served_elsewhere() == {"clerk": ("v1",)}
    lapsed = c.CloseSession(command_id=world.app.runtime.ids.new(), reason="lease_lapsed", **about)
    await world.store.commit_one(lapsed)
    assert await others.served_elsewhere() == {}
