"""Workers cut off from their store: results wait, leases run out, and nothing is lost or said twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from endwell import StoreError
from endwell.model import commands as c
from endwell.store.contract import Store
from endwell.store.rows import Reply
from endwell.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually


class Away:
    """A store that a test can take away from one node, and from its heartbeat."""

    def __init__(self, store: Store) -> None:
        self.is_away = False
        self.refused = 0
        self._cut(store)
        usual = store.for_another_loop

        def sibling() -> Store:
            found = usual()
            if found is not store:
                self._cut(found)
            return found

        store.for_another_loop = sibling  # type: ignore[method-assign]  # the test takes it away

    def _cut(self, store: Store) -> None:
        usual = store.commit

        async def commit(commands: Sequence[c.Command]) -> list[Reply]:
            if self.is_away:
                self.refused += not isinstance(commands[0], c.Heartbeat)
                raise StoreError("gone for a while")
            return await usual(commands)

        store.commit = commit  # type: ignore[method-assign]  # the test takes it away


async def test_results_wait_while_the_store_is_away_and_none_is_lost(world: World) -> None:
    gate = asyncio.Event()
    runs: list[int] = []

    @world.app.agent("echo")
    async def echo(number: int) -> int:
        runs.append(number)
        await gate.wait()
        return number

    node = await world.another_node()
    away = Away(node.store)
    worker = await world.working(node)
    handles = await world.client.submit_many("echo", range(5))
    await eventually(lambda: len(runs) == 5)
    away.is_away = True
    gate.set()
    await eventually(lambda: len(worker._outbox) == 5, "the results wait")
    away.is_away = False

    assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(5))
    assert sorted(runs) == list(range(5)), "nothing was computed twice"
    assert worker.refused == 0


@pytest.mark.covers("S3.18", "S3.19")
async def test_a_worker_cut_off_for_longer_than_its_lease_stops_by_itself(quick_world: World) -> None:
    world = quick_world
    began, stopped = asyncio.Event(), asyncio.Event()
    first = True

    @world.app.agent("long")
    async def long() -> str:
        nonlocal first
        if not first:
            return "second try"
        first = False
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    node = await world.another_node()
    away = Away(node.store)
    worker = await world.working(node)
    handle = await world.submitted("long")
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    old = worker.session_id
    away.is_away = True
    await asyncio.wait_for(stopped.wait(), PATIENCE_SECONDS)  # by its own clock
    assert (await handle.task()).status == "running", "it is not reclaimed yet"
    away.is_away = False
    pmo = await world.supervisor()

    async def is_done() -> bool:
        await pmo.run_once()
        return (await handle.task()).is_ended

    await eventually(is_done)
    assert await handle.result(PATIENCE_SECONDS) == "second try"
    assert worker.session_id not in ("", old)
    assert "write.refused" not in await world.history(handle)


async def test_one_failed_heartbeat_does_not_cost_the_lease(quick_world: World) -> None:
    world = quick_world
    gate, began = asyncio.Event(), asyncio.Event()

    @world.app.agent("long")
    async def long() -> str:
        began.set()
        await gate.wait()
        return "done"

    node = await world.another_node()
    away = Away(node.store)
    worker = await world.working(node)
    handle = await world.submitted("long")
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    session = worker.session_id
    heart = worker._session._heartbeat
    assert heart is not None
    away.is_away = True
    await eventually(lambda: heart.failures > 0)
    away.is_away = False
    gate.set()
    assert await handle.result(PATIENCE_SECONDS) == "done"
    assert worker.session_id == session
    assert (await handle.task()).crash_count == 0


async def test_a_worker_survives_a_failed_round(world: World) -> None:
    @world.app.agent("echo")
    async def echo(number: int) -> int:
        return number

    node = await world.another_node()
    usual, failures = node.store.commit, [RuntimeError("a defect"), ValueError("another")]

    async def defective(commands: Any) -> list[Reply]:
        if failures and any(isinstance(command, c.Finish) for command in commands):
            raise failures.pop()
        return await usual(commands)

    node.store.commit = defective  # type: ignore[method-assign]  # the test breaks it
    worker = await world.working(node)
    assert await (await world.submitted("echo", 1)).result(PATIENCE_SECONDS) == 1
    assert worker.failures == 2


async def test_a_draining_worker_waits_for_a_store_that_is_away(store_url: str) -> None:
    async with World(store_url, settings={"worker.drain_seconds": 10}) as world:
        gate, began = asyncio.Event(), asyncio.Event()

        @world.app.agent("short")
        async def short() -> str:
            began.set()
            await gate.wait()
            return "kept"

        node = await world.another_node()
        away = Away(node.store)
        worker = await world.started_worker(node)
        run = asyncio.get_running_loop().create_task(worker.run())
        handle = await world.submitted("short")
        await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
        worker.stop()
        away.is_away = True
        gate.set()
        await eventually(lambda: away.refused >= 2, "the draining worker tries again")
        away.is_away = False
        await asyncio.wait_for(run, PATIENCE_SECONDS)
        assert await handle.result(PATIENCE_SECONDS) == "kept"


async def test_a_worker_closes_although_the_store_is_away(world: World) -> None:
    @world.app.agent("echo")
    async def echo() -> None: ...

    node = await world.another_node()
    away = Away(node.store)
    worker: Worker = node.worker()
    await worker.start()
    pmo = node.pmo()
    await pmo.start()
    away.is_away = True
    await worker.close()
    await pmo.close()
    away.is_away = False
