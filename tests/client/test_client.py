"""The client: agents as last registered, and rings that it must not miss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from endwell.client import SPEC_SECONDS
from endwell.doorbell.contract import BellHealth
from endwell.errors import TaskFailed
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.worker.worker import Worker
from tests.client.small_app import small_app
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually
from tests.worker.test_worker import drained


async def test_a_changed_registration_of_a_remote_agent_is_soon_known(world: World) -> None:
    async def registered(deadline: int) -> None:
        spec = c.AgentSpec(name="remote", deadline=deadline * SECOND)
        await world.store.commit_one(
            c.RegisterAgents(
                command_id=world.app.runtime.ids.new(), namespace=world.namespace, agents=(spec,)
            )
        )

    async def deadline_of_a_new_task() -> int:
        task = await (await world.client.submit("remote")).task()
        return (task.ends_by - task.created_at) // SECOND

    await registered(deadline=100)
    assert await deadline_of_a_new_task() == 100
    await registered(deadline=200)
    world.clock.advance(SPEC_SECONDS)
    assert await deadline_of_a_new_task() == 200


@pytest.fixture
async def patient_world(store_url: str) -> AsyncIterator[World]:
    """A world that hardly polls: an end without a ring is not found."""
    async with World(store_url, settings={"worker.poll_seconds": 3600.0}) as world:
        yield world


async def test_a_task_that_ends_during_the_look_is_noticed(
    patient_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = patient_world

    @world.app.agent("quick")
    async def quick() -> str:
        return "done"

    worker = await world.started_worker()
    handle = await world.client.submit("quick")
    look = world.store.task

    async def look_and_be_overtaken(namespace: str, task_id: str) -> Task:
        seen = await look(namespace, task_id)
        await drained(worker, world.client)
        return seen

    monkeypatch.setattr(world.store, "task", look_and_be_overtaken)
    assert await handle.result(PATIENCE_SECONDS) == "done"


@pytest.fixture
async def quick(patient_world: World, monkeypatch: pytest.MonkeyPatch) -> Quick:
    """A client that has waited before, and so listens for every end."""

    @patient_world.app.agent("quick")
    async def at_once() -> str:
        return "done"

    quick = Quick(patient_world, await patient_world.started_worker())
    handle = await quick.world.client.submit("quick")
    await drained(quick.worker, quick.world.client)
    assert await handle.result(PATIENCE_SECONDS) == "done"
    monkeypatch.setattr(patient_world.store, "task", quick.look)
    return quick


class Quick:
    """A worker whose tasks end at once; counts the reads of tasks."""

    def __init__(self, world: World, worker: Worker) -> None:
        self.world = world
        self.worker = worker
        self.looks = 0
        self._task = world.store.task

    async def look(self, namespace: str, task_id: str) -> Task:
        self.looks += 1
        return await self._task(namespace, task_id)


async def test_a_new_task_is_not_read_before_an_end_was_rung(quick: Quick) -> None:
    handle = await quick.world.client.submit("quick")
    waiting = asyncio.ensure_future(handle.result(PATIENCE_SECONDS))
    await asyncio.sleep(0)
    await drained(quick.worker, quick.world.client)
    assert await waiting == "done"
    assert quick.looks == 0


async def test_a_task_that_ended_before_the_wait_is_found_at_once(quick: Quick) -> None:
    waiters = quick.world.client._waiters
    before = waiters.ends_rung
    handle = await quick.world.client.submit("quick")
    await drained(quick.worker, quick.world.client)
    await eventually(lambda: waiters.ends_rung != before, "its end was rung")
    assert await handle.result(PATIENCE_SECONDS) == "done"


async def test_an_older_task_is_read_at_once(quick: Quick) -> None:
    first = await quick.world.client.submit("quick", key="k")
    await drained(quick.worker, quick.world.client)
    await first.result(PATIENCE_SECONDS)
    again = await quick.world.client.submit("quick", key="k")
    assert again.deduplicated
    assert await again.result(PATIENCE_SECONDS) == "done"


async def test_without_a_doorbell_a_new_task_is_read_at_once(
    quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = BellHealth(kind="dead", connected=False)
    monkeypatch.setattr(quick.world.client._waiters._bell, "health", lambda: dead)
    handle = await quick.world.client.submit("quick")
    waiting = asyncio.ensure_future(handle.result(PATIENCE_SECONDS))
    await eventually(lambda: quick.looks == 1, "it was looked at")
    await drained(quick.worker, quick.world.client)
    assert await waiting == "done"


def test_a_blocking_call_on_the_fronts_own_loop_is_refused(store_url: str) -> None:
    app = small_app(store_url)

    @app.agent("impatient")
    async def impatient() -> Any:
        return app.submit("double", 1).id

    with app.running(), pytest.raises(TaskFailed, match="own event loop"):
        app.submit("impatient").result(PATIENCE_SECONDS)


async def test_a_backlog_is_drained_without_exceeding_the_slots(world: World) -> None:
    running, most, runs = 0, 0, 0

    @world.app.agent("clerk")
    async def clerk() -> None:
        nonlocal running, most, runs
        running, runs = running + 1, runs + 1
        most = max(most, running)
        await asyncio.sleep(0.03)
        running -= 1

    handles = await world.client.submit_many("clerk", [None] * 30)
    await world.working(concurrency=5)
    for handle in handles:
        await handle.result(PATIENCE_SECONDS)
    assert (most, runs) == (5, 30)
