"""A world for a test: one installation whose time the test moves, with workers and supervisors in it."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import apsw
import asyncpg

from endwell import AsyncHandle, Client, Endwell
from endwell.app import Node
from endwell.doorbell.contract import BellHealth, Doorbell, OnRing, Unsubscribe
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.pmo.service import Pmo
from endwell.runtime import Clock, Runtime
from endwell.runtime.child_process import ChildProcess
from endwell.store.contract import Ring, Store
from endwell.store.log import Event
from endwell.store.postgres.store import PostgresStore
from endwell.store.rows import Offer
from endwell.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.support.manual_clock import ManualClock

START_US = 1_700_000_000 * SECOND
"""When the clock of a test begins."""

QUICK: dict[str, object] = {
    "worker.poll_seconds": 0.05,
    "worker.quiet_poll_seconds": 0.05,
    "worker.heartbeat_seconds": 0.05,  # so that a lease that lapsed by a leap of the clock is soon renewed
    "worker.drain_seconds": 0.2,
    "retry.jitter": 0.0,
}
TINY: dict[str, object] = {
    **QUICK,
    "worker.lease_seconds": 1.2,  # a busy machine alone must not take a healthy worker's lease
    "worker.heartbeat_seconds": 0.1,
    "pmo.watchdog_interval_seconds": 0.1,
    "retry.base_seconds": 0.05,
}
"""For tests in which real time passes: leases lapse soon."""

ENDINGS = ("task.succeeded", "task.failed", "task.timeout", "task.cancelled")


class SilentBell:
    """A doorbell that loses every ring."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def ring(self, topics: object) -> None: ...

    def subscribe(self, callback: OnRing) -> Unsubscribe:
        return lambda: None

    def health(self) -> BellHealth:
        return BellHealth(kind="silent", connected=False)


class MovableApp(Endwell):
    """An installation that follows the test's clock, on PostgreSQL too: there by a shift of the server's."""

    def __init__(self, url: str, *, namespace: str, clock: Clock, settings: Mapping[str, object]) -> None:
        runtime = Runtime.system(clock=clock, threads=8)
        super().__init__(url, namespace=namespace, settings=settings, runtime=runtime)
        self.is_silent = False

    def open_store(self, ring: Ring | None = None) -> Store:
        clock = self.runtime.clock
        if self.url.startswith("sqlite") or not isinstance(clock, ManualClock):
            return super().open_store(ring)
        return PostgresStore(
            self.url,
            limits=self.limits,
            runtime=self.runtime,
            ring=ring,
            shift=lambda: clock.now_us() - START_US,
        )

    def open_bell(self) -> Doorbell:
        return SilentBell() if self.is_silent else super().open_bell()


class World:
    """Agents are registered on `app`; everything that was started here is stopped at the end.

    A setting of None is left at its default.
    """

    def __init__(
        self, url: str, *, settings: Mapping[str, object] | None = None, clock: Clock | None = None
    ) -> None:
        self.clock = ManualClock(START_US)
        self.namespace = f"test-{uuid.uuid4().hex}"  # PostgreSQL tests share a database
        values = {key: value for key, value in {**QUICK, **(settings or {})}.items() if value is not None}
        self.app = MovableApp(url, namespace=self.namespace, clock=clock or self.clock, settings=values)
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self.node: Node

    async def __aenter__(self) -> Self:
        self.node = await self.another_node()
        return self

    async def __aexit__(self, *_: object) -> None:
        for close in reversed(self._closing):
            await close()

    @property
    def client(self) -> Client:
        return self.node.client

    @property
    def store(self) -> Store:
        return self.node.store

    async def another_node(self) -> Node:
        """Its own connections and doorbell, as another process would have."""
        node = await self.app.connect().__aenter__()
        self._closing.append(node.__aexit__)
        return node

    async def started_worker(self, node: Node | None = None, **options: Any) -> Worker:
        """A worker that has a session and does nothing until `run_once` is called."""
        worker = (node or self.node).worker(**options)
        await worker.start()
        self._closing.append(worker.close)
        return worker

    async def working(self, node: Node | None = None, **options: Any) -> Worker:
        """A worker that runs beside the test."""
        worker = await self.started_worker(node, **options)
        run = asyncio.get_running_loop().create_task(worker.run())

        async def stop() -> None:
            worker.stop()
            await run

        self._closing.append(stop)
        return worker

    async def let_pass(self, seconds: float, worker: Worker) -> None:
        """Move the clock no faster than the worker's heart beats: it is not to lose its lease by haste."""
        self.clock.advance(seconds)
        moved_at = await self.store.now()
        worker._session.beat_now()

        async def has_beaten() -> bool:
            session = await self.store.session(self.namespace, worker.session_id)
            return session is not None and session.heartbeat_at >= moved_at

        await eventually(has_beaten, "the worker keeps up with the clock")

    async def supervisor(self, node: Node | None = None) -> Pmo:
        """A PMO that ticks only when `run_once` is called."""
        pmo = (node or self.node).pmo()
        await pmo.start()
        self._closing.append(pmo.close)
        return pmo

    async def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Look into the database, or spoil it, past the one door; `?` stands for a value."""
        if self.app.url.startswith("sqlite"):
            return _in_sqlite(self.app.url.removeprefix("sqlite:///"), statement, values)
        numbers = iter(range(1, len(values) + 1))
        connection = await asyncpg.connect(self.app.url)
        try:
            rows = await connection.fetch(re.sub(r"\?", lambda _: f"${next(numbers)}", statement), *values)
            return [tuple(row) for row in rows]
        finally:
            await connection.close()

    async def counts(self) -> dict[str, int]:
        """How many tasks there are in each status."""
        return await self.store.counts_by_status(self.namespace)

    async def events(self, handle: AsyncHandle) -> list[Event]:
        return await self.store.events_of_task(self.namespace, handle.id)

    async def facts(self, handle: AsyncHandle, kind: str) -> list[Any]:
        """What the events of one type say."""
        return [event.fact for event in await self.events(handle) if event.type == kind]

    async def history(self, handle: AsyncHandle) -> list[str]:
        """The types of a task's events."""
        return [event.type for event in await self.events(handle)]

    async def in_status(self, handle: AsyncHandle, *statuses: str) -> Task:
        """The task, once it has one of these statuses."""

        async def reached() -> bool:
            return (await handle.task()).status in statuses

        await eventually(reached, f"task {handle.id} is {' or '.join(statuses)}")
        return await handle.task()

    async def brought_to(self, worker: Worker, handle: AsyncHandle, status: str) -> Task:
        """The task, once rounds of that worker, made by hand, have brought it there; all is said, too."""

        async def reached() -> bool:
            worker._source.may_have_work = True
            await worker.run_once()
            return (await handle.task()).status == status

        def is_handing_on() -> bool:
            return any(task.get_name() == "endwell-deliver" for task in worker._runtime._spawned)

        await eventually(reached, f"task {handle.id} is {status}")
        await eventually(lambda: not is_handing_on(), "it has looked for what came while it suspended")
        return await handle.task()

    async def submitted(self, agent: str, payload: Any = None, **options: Any) -> AsyncHandle:
        return await self.client.submit(agent, payload, **options)

    async def claimed(self, session: Session, agent: str, limit: int = 1) -> tuple[Offer, ...]:
        """Take tasks as a worker would, without running anything."""
        reply = await self.store.commit_one(
            c.ClaimNext(
                command_id=self.app.runtime.ids.new(),
                namespace=self.namespace,
                actor="test",
                session_id=session.id,
                agents=(agent,),
                limit=limit,
            )
        )
        return reply.taken

    async def silent_session(
        self, agent: str, *, concurrency: int = 10, lease_seconds: float = 30.0, host: str = "elsewhere"
    ) -> Session:
        """A session of a worker that does nothing by itself: the test says what it does."""
        session = Session(self, self.app.runtime.ids.new())
        await self.store.commit_one(
            c.OpenSession(
                command_id=self.app.runtime.ids.new(),
                namespace=self.namespace,
                actor="test",
                session_id=session.id,
                kind="worker",
                name="silent",
                host=host,
                pid=1,
                agents=(agent,),
                concurrency=concurrency,
                lease=int(lease_seconds * SECOND),
            )
        )
        return session

    async def freeze_between_commits(self, child: ChildProcess) -> None:
        """Stopped inside a commit on SQLite, a process keeps the file's lock and everybody waits for it."""
        unknown = c.CloseSession(command_id="probe", namespace=self.namespace, session_id="none")
        while True:
            child.freeze()
            probe = asyncio.ensure_future(self.store.commit((unknown,)))
            done, _ = await asyncio.wait([probe], timeout=0.2)
            if done:
                return
            child.thaw()
            await probe

    async def registered(self, *agents: str) -> None:
        """Tell the store of agents without starting a worker."""
        await self.store.commit_one(
            c.RegisterAgents(
                command_id=self.app.runtime.ids.new(),
                namespace=self.namespace,
                agents=tuple(self.app.agents[name].spec() for name in agents),
            )
        )


class Session:
    """What a worker's session can say to the store."""

    def __init__(self, world: World, session_id: str) -> None:
        self._world = world
        self.id = session_id

    async def beat(self, *offers: Offer, lease_seconds: float = 30.0) -> tuple[str, ...]:
        """Renew the lease; which of the named attempts are stale."""
        reply = await self._world.store.commit_one(
            c.Heartbeat(
                command_id=self._world.app.runtime.ids.new(),
                namespace=self._world.namespace,
                session_id=self.id,
                lease=int(lease_seconds * SECOND),
                attempts=tuple((o.task.id, o.task.attempt_id or "") for o in offers),
            )
        )
        return reply.stale

    async def crash(self, offer: Offer) -> None:
        """Have a turn reclaimed as if its worker had died."""
        await self._world.store.commit_one(
            c.Reclaim(
                command_id=self._world.app.runtime.ids.new(),
                namespace=self._world.namespace,
                task_id=offer.task.id,
                attempt_id=offer.task.attempt_id or "",
                session_id=self.id,
                reason="visibility_timeout",
            )
        )

    async def finish(self, offer: Offer, result: bytes = b'"late"') -> Task:
        reply = await self._world.store.commit_one(
            c.Finish(
                command_id=self._world.app.runtime.ids.new(),
                namespace=self._world.namespace,
                actor="test",
                task_id=offer.task.id,
                attempt_id=offer.task.attempt_id or "",
                result=result,
                result_hash="h",
            )
        )
        return reply.unwrap()


def _in_sqlite(path: str, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(5000)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


async def eventually(
    condition: Callable[[], Awaitable[bool] | bool],
    what: str = "the condition holds",
    seconds: float = PATIENCE_SECONDS,
) -> None:
    """Wait until the condition holds; fail loudly when it does not in time."""
    give_up_at = time.monotonic() + seconds
    while True:
        answer = condition()
        if await answer if isinstance(answer, Awaitable) else answer:
            return
        if time.monotonic() > give_up_at:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(0.005)


def terminal(history: list[str]) -> list[str]:
    """The terminal events of a history: there must be exactly one."""
    return [kind for kind in history if kind in ENDINGS]
