"""Servers die, restart, fall silent and heal under a working installation: nothing is lost or doubled.

Real NATS, Valkey and PostgreSQL processes, reached through a proxy. At every fault more than a hundred tasks
are unfinished: their agent waits at a gate that opens only when the fault is there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from endwell import AsyncHandle, Context
from endwell.app import Node, Services
from endwell.errors import StoreError
from endwell.model.moments import SECOND
from endwell.model.status import TERMINAL
from endwell.operate.bounds import compute_bounds
from endwell.runtime import SystemClock
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.small import NatsServer, ValkeyServer
from tests.support.world import World, eventually

MANY = 130
UNFINISHED = 100
PATIENCE = 600.0
DEADLINE_SECONDS = 90.0
SETTINGS: dict[str, object] = {
    "worker.poll_seconds": 0.5,
    "worker.heartbeat_seconds": 1.0,
    "worker.lease_seconds": 60.0,  # no fault here takes so long, and a slow machine must not look like one
    "worker.watchdog_interval_seconds": 0.5,
    "worker.drain_seconds": 5.0,
    "worker.concurrency": 40,
    "pmo.watchdog_interval_seconds": 0.5,
}


class Server(Protocol):
    """A server that can be killed and started again."""

    def start(self) -> None: ...

    def kill(self) -> None: ...


class Works:
    """Two workers and two PMOs on nodes of their own, with tasks that each have one effect."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._gate = asyncio.Event()
        self._handles: list[AsyncHandle] = []
        self._count = 0
        self.nodes: list[Node] = []
        self.done: Counter[int] = Counter()
        world.app.agent("clerk", deadline=DEADLINE_SECONDS)(self._work)

    async def _work(self, ctx: Context, number: int) -> int:
        await self._gate.wait()
        paid: int = await ctx.effect("pay", self._pay, number, key=f"{self._world.namespace}:{number}")
        return paid

    async def _pay(self, number: int) -> int:
        self.done[number] += 1
        return number

    async def submit(self, count: int) -> None:
        numbers = range(self._count, self._count + count)
        self._count += count
        self._handles += await self._world.client.submit_many("clerk", numbers)

    async def unfinished(self) -> int:
        counts = await self._world.counts()
        return sum(count for status, count in counts.items() if status not in TERMINAL)

    async def load(self) -> None:
        """Submit many tasks; some start, none can end before the gate opens."""
        self._gate.clear()
        await self.submit(MANY)

        async def some_run() -> bool:
            return (await self._world.counts()).get("running", 0) >= 40

        await eventually(some_run, "some tasks run", PATIENCE)
        assert await self.unfinished() >= UNFINISHED

    def open_gate(self) -> None:
        self._gate.set()

    async def all_end(self) -> None:
        async def ended() -> bool:
            try:
                return await self.unfinished() == 0
            except StoreError:  # the server may still be coming back
                return False

        await eventually(ended, "everything has ended", PATIENCE)

    def bells_work(self) -> bool:
        return all(node.bell.health().connected for node in self.nodes)

    def bells_are_dead(self) -> bool:
        return not any(node.bell.health().connected for node in self.nodes)

    async def check(self) -> None:
        """No task is lost or doubled, and all end within their bound."""
        world = self._world
        assert await world.counts() == {"succeeded": self._count}
        assert self.done == Counter(range(self._count))
        terminal = await world.sql(
            "SELECT task_id, count(*) FROM events WHERE namespace = ? AND type IN "
            "('task.succeeded', 'task.failed', 'task.timeout', 'task.cancelled') GROUP BY task_id",
            world.namespace,
        )
        assert sorted(terminal) == sorted((handle.id, 1) for handle in self._handles)
        tasks = await world.store.tasks_by_ids(world.namespace, [handle.id for handle in self._handles])
        assert all((task.ended_at or 0) <= task.run_at + self._bound() * SECOND for task in tasks)

    def _bound(self) -> float:
        """The bound of `endwell bounds` for these settings."""
        app = self._world.app
        answer = compute_bounds(
            app.settings, app.limits, [app.agents["clerk"].spec()], has_stamps=self._world.store.has_stamps
        )
        assert answer["ok"]
        return float(answer["items"][0]["ended_at_the_latest_seconds"])


@asynccontextmanager
async def works(url: str, **settings: object) -> AsyncIterator[Works]:
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    async with World(url, settings={**SETTINGS, **dotted}, clock=SystemClock()) as world:
        at_work = Works(world)
        services = []
        for _ in range(2):
            node = await world.another_node()
            at_work.nodes.append(node)
            services.append(Services(node, worker=True, pmo=True))
            await services[-1].start()
        yield at_work
        for each in services:
            await each.stop()


async def bell_faults(at_work: Works, server: Server, proxy: Proxy) -> None:
    """The doorbell's server dies, and falls silent; the store stays reachable."""
    await bell_fault(at_work, lambda: asyncio.to_thread(server.kill), lambda: asyncio.to_thread(server.start))
    await bell_fault(at_work, as_async(proxy.black_hole), as_async(proxy.heal))

    async def lost_while_silent() -> None:
        proxy.cut_all()
        proxy.heal()

    await bell_fault(at_work, as_async(proxy.black_hole), lost_while_silent)


async def bell_fault(
    at_work: Works, harm: Callable[[], Awaitable[None]], mend: Callable[[], Awaitable[None]]
) -> None:
    await at_work.load()
    await harm()
    assert await at_work.unfinished() >= UNFINISHED
    at_work.open_gate()
    await eventually(at_work.bells_are_dead, "the fault is noticed", PATIENCE)
    await at_work.submit(10)  # no ring arrives
    await at_work.all_end()
    await mend()
    await eventually(at_work.bells_work, "the bells are back", PATIENCE)


def as_async(call: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def called() -> None:
        call()

    return called


@pytest.mark.covers("S0.3")
async def test_nats_is_killed_and_black_holed_while_a_hundred_tasks_are_unfinished(
    shared_postgres_url: str, own_nats: NatsServer
) -> None:
    async with Proxy(own_nats.url) as proxy, works(shared_postgres_url, nats__url=proxy.url) as at_work:
        await bell_faults(at_work, own_nats, proxy)
        await at_work.check()


@pytest.mark.covers("S0.3")
async def test_valkey_is_killed_and_black_holed_while_a_hundred_tasks_are_unfinished(
    sqlite_url: str, own_valkey: ValkeyServer
) -> None:
    async with Proxy(own_valkey.url) as proxy, works(sqlite_url, redis__url=proxy.url) as at_work:
        await bell_faults(at_work, own_valkey, proxy)
        await at_work.check()


async def test_postgresql_is_killed_and_black_holed_while_a_hundred_tasks_are_unfinished(
    honest_postgres_server: PostgresServer,
) -> None:
    server = honest_postgres_server
    async with Proxy(server.create_database()) as proxy, works(proxy.url) as at_work:
        await at_work.load()
        await asyncio.to_thread(server.kill)
        at_work.open_gate()
        await eventually(at_work.bells_are_dead, "the fault is noticed", PATIENCE)
        await asyncio.to_thread(server.start)
        await at_work.all_end()
        for is_lost in (False, True):
            await at_work.load()
            proxy.black_hole()
            at_work.open_gate()
            await eventually(lambda: proxy.held_back > 0, "a question waits", PATIENCE)
            if is_lost:
                proxy.cut_all()
            proxy.heal()
            await at_work.all_end()
        await eventually(at_work.bells_work, "the bells are back", PATIENCE)
        await at_work.check()
