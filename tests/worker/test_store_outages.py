"""Outages of the store that outlive every lease: no process dies, so no task is counted as crashed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from endwell import AsyncHandle
from endwell.app import Node
from endwell.model.facts import TaskReclaimed
from endwell.runtime import SystemClock
from endwell.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.servers.postgres import PostgresServer
from tests.support.world import TINY, World, eventually

SHORT = {**TINY, "worker.lease_seconds": 1.0, "worker.heartbeat_seconds": 0.3}
OUTAGES = 3
TASKS = 4
Begin = Callable[[], Awaitable[Callable[[], None]]]
"""Begins an outage, and returns what ends it."""


async def supervised(world: World, node: Node) -> Callable[[], Awaitable[None]]:
    """A supervisor that ticks beside the test, and how it is stopped."""
    pmo = node.pmo()
    await pmo.start()
    run = asyncio.get_running_loop().create_task(pmo.run())

    async def stop() -> None:
        pmo.stop()
        await run
        await pmo.close()

    return stop


async def outlive(url: str, begin: Begin, *, is_supervised: bool = True) -> None:
    """Tasks run while the store is away for longer than the lease, three times; then they succeed."""
    async with World(url, settings=SHORT, clock=SystemClock()) as world:
        gate = asyncio.Event()

        @world.app.agent("long")
        async def long(number: int) -> int:
            await gate.wait()
            return number

        worker = await world.working(await world.another_node())
        stop = await supervised(world, await world.another_node()) if is_supervised else None
        handles = await world.client.submit_many("long", range(TASKS), deadline=3600)
        await eventually(lambda: len(worker._turns.live_turns()) == TASKS, "all tasks run")
        for _ in range(OUTAGES):
            await live_through_one(worker, begin)
        gate.set()
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(TASKS))
        await assert_no_crash_was_counted(world, handles, may_be_reclaimed=is_supervised)
        if stop is not None:
            await stop()


async def live_through_one(worker: Worker, begin: Begin) -> None:
    session = worker.session_id
    end = await begin()
    try:
        await eventually(lambda: worker.session_id == "", "the worker lost its lease")
    finally:
        end()
    await eventually(lambda: worker.session_id not in ("", session), "the worker has a new session")
    await eventually(lambda: len(worker._turns.live_turns()) == TASKS, "all tasks run again")


async def assert_no_crash_was_counted(
    world: World, handles: list[AsyncHandle], *, may_be_reclaimed: bool
) -> None:
    """One more delivery is counted only where the supervisor was back first and took the turn."""
    for handle in handles:
        task = await handle.task()
        events = await world.store.events_of_task(world.namespace, handle.id)
        costs = [event.fact.cost for event in events if isinstance(event.fact, TaskReclaimed)]
        assert set(costs) <= {"nothing", "delivery"} if may_be_reclaimed else not costs
        counters = (task.crash_count, task.retry_count, task.dispatch_count)
        assert (task.status, *counters) == ("succeeded", 0, 0, 1 + costs.count("delivery"))


async def test_a_postgresql_server_that_is_down_for_longer_than_the_lease_counts_no_crash(
    honest_postgres_server: PostgresServer,
) -> None:
    server = honest_postgres_server

    async def begin() -> Callable[[], None]:
        server.kill()
        return server.start

    await outlive(server.create_database(), begin)


async def test_a_frozen_postgresql_server_counts_no_crash(honest_postgres_server: PostgresServer) -> None:
    server = honest_postgres_server

    def signal_all(number: signal.Signals) -> None:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        for pid in (server.pid, *map(int, children)):
            os.kill(pid, number)

    async def begin() -> Callable[[], None]:
        signal_all(signal.SIGSTOP)
        return lambda: signal_all(signal.SIGCONT)

    await outlive(server.create_database(), begin)


@pytest.mark.parametrize("is_supervised", [True, False], ids=["supervised", "alone"])
async def test_a_write_lock_held_for_longer_than_the_lease_counts_no_crash(
    tmp_path: Path, is_supervised: bool
) -> None:
    """A worker that is alone hands its turns back itself."""
    path = tmp_path / "held.db"

    async def begin() -> Callable[[], None]:
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(10_000)
        await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")

        def end() -> None:
            connection.execute("ROLLBACK")
            connection.close()

        return end

    await outlive(f"sqlite:///{path}", begin, is_supervised=is_supervised)
