"""A place to measure at: a fresh store, an open node on it, and real processes beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from endwell.app import Endwell, Node
from endwell.bench import agents
from endwell.client import AsyncHandle
from endwell.demo.crew import Crew, CrewMember, clean_environment
from endwell.model.status import TERMINAL
from endwell.redis_client import RedisClient
from endwell.runtime.base import Runtime
from endwell.settings import Settings, override
from endwell.settings.store_url import sqlite_path

STOP_SECONDS = 60.0
MOST_AT_ONCE = 50_000
"""Tasks in one call of `submit_many`: a million commands at once would fill the memory."""
LOOK_SECONDS = 0.1
TAIL = 8
"""How many of the last tasks are looked at during a drain: looking must not slow it down."""
ANY = object()
"""Expected of a task whose result is not known before."""


class BenchPlace:
    """An installation with default settings; `expected` has the result of each task by its id."""

    def __init__(self, node: Node, crew: Crew, *, needs_pmo: bool) -> None:
        self.node = node
        self.crew = crew
        self.runtime = node.app.runtime
        self.namespace = node.app.namespace
        self.expected: dict[str, Any] = {}
        self._needs_pmo = needs_pmo

    async def submit(self, count: int) -> None:
        """Submit many tasks with few calls; each must return its number."""
        for _ in range(0, count, MOST_AT_ONCE):
            start = len(self.expected)
            numbers = range(start, start + min(MOST_AT_ONCE, count - start))
            handles = await self.node.client.submit_many(agents.AGENT, numbers)
            self.expected |= {handle.id: number for handle, number in zip(handles, numbers, strict=True)}

    async def submit_one(self, agent: str, payload: Any = None, *, result: Any = ANY) -> AsyncHandle:
        """Submit one task with the result that it must have."""
        handle = await self.node.client.submit(agent, payload)
        self.expected[handle.id] = result
        return handle

    async def start(self, role: str, count: int = 1) -> list[CrewMember]:
        """Start real processes and wait until they are ready; a stream needs a PMO that feeds it."""
        if self._needs_pmo and role != "pmo" and "pmo-0" not in self.crew.members:
            await self.start("pmo")
        options = ("--app", "endwell.bench.agents:app") if role == "worker" else ()
        where = ("--namespace", self.namespace)
        members = [self.crew.start(f"{role}-{number}", role, *where, *options) for number in range(count)]
        await self.crew.wait_ready(members)
        return members

    async def stop(self) -> None:
        """Ask every process to end, as an operator would."""
        for member in self.crew.members.values():
            member.child.terminate()
        for member in self.crew.members.values():
            await self.runtime.in_thread(member.child.wait, STOP_SECONDS)

    async def wait_drained(self) -> None:
        """Wait until every submitted task has ended. Only the last ones are looked at: they end last."""
        limit = self.runtime.clock.monotonic() + 60 + len(self.expected) / 200
        tail = list(self.expected)[-TAIL:]
        while not await self._have_ended(tail) or await self._count_live():
            if self.runtime.clock.monotonic() > limit:
                raise TimeoutError(f"{await self._count_live()} of {len(self.expected)} tasks have not ended")
            await self.runtime.sleep(LOOK_SECONDS)

    async def _have_ended(self, ids: list[str]) -> bool:
        return all(task.is_ended for task in await self.node.store.tasks_by_ids(self.namespace, ids))

    async def _count_live(self) -> int:
        counts = await self.node.store.counts_by_status(self.namespace)
        return sum(count for status, count in counts.items() if status not in TERMINAL)


class Ground:
    """Makes fresh places: SQLite files in a directory, or namespaces of one PostgreSQL database."""

    def __init__(self, runtime: Runtime, directory: Path, url: str | None, redis: str | None = None) -> None:
        self._runtime = runtime
        self._directory = directory
        self._url = url
        self._redis = redis

    @property
    def is_streamed(self) -> bool:
        """Whether turns travel over Redis Streams."""
        return self._redis is not None

    @property
    def store_kind(self) -> str:
        """`sqlite` or `postgresql`, with `redis+` before it where that carries the turns."""
        store = "sqlite" if self._url is None or self._url.startswith("sqlite") else "postgresql"
        return f"redis+{store}" if self.is_streamed else store

    def make_app(self) -> Endwell:
        """An installation with default settings on a fresh store, in this process.

        A file of its own holds the default namespace, as with most users.
        """
        unique = self._runtime.ids.new()
        values: dict[str, object] = {"store": self._url or f"sqlite:///{self._directory / unique}.db"}
        if self._redis is not None:
            redis = {"redis.url": self._redis, "redis.prefix": f"bench-{unique}:"}
            values |= {"queue.kind": "redis", **redis}
        settings = override(Settings(), values, source="bench")
        namespace = "default" if self._url is None else f"bench-{unique}"
        app = Endwell(namespace=namespace, settings=settings, runtime=self._runtime)
        app.agents.update(agents.app.agents)
        return app

    @contextlib.asynccontextmanager
    async def make_place(self) -> AsyncIterator[BenchPlace]:
        """A fresh place; at the end its processes are killed, and its keys and its file removed."""
        app = self.make_app()
        values = {key: app.settings.value(key) for key in ("queue.kind", "redis.url", "redis.prefix")}
        env = clean_environment(
            app.url, values if self.is_streamed else {}, {agents.NAMESPACE: app.namespace}
        )
        directory = self._directory / f"crew-{self._runtime.ids.new()}"
        os.mkdir(directory, 0o700)
        async with app.connect() as node:
            place = BenchPlace(node, Crew(self._runtime, directory, env), needs_pmo=self.is_streamed)
            try:
                yield place
            finally:
                place.crew.end()
                await self._remove_keys(app.settings.redis.prefix)
        if self._url is None:  # a million tasks are more than a gigabyte
            file = sqlite_path(app.url)
            for path in file.parent.glob(f"{file.name}*"):
                path.unlink(missing_ok=True)

    async def _remove_keys(self, prefix: str) -> None:
        if self._redis is not None:
            connection = RedisClient(self._redis)
            await connection.remove_keys(prefix)
            await connection.close()
