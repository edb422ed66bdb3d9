"""The cost of idling: processor time of real idle processes, and the statements that they send.

The kernel measures the processor time of `endwell worker` and `endwell pmo`. Statements are counted in this
process, where the same worker and PMO run with the same settings on stores of their own.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import apsw

from endwell.app import Services
from endwell.bench.measurements import Measurement
from endwell.bench.place import Ground
from endwell.bench.rows import Row
from endwell.runtime.processes import cpu_seconds

SETTLE_SECONDS = 2.0
ROLES = ("worker", "pmo")
WRITES = re.compile(r"\bINSERT\s+INTO\b|\bDELETE\s+FROM\b|\bUPDATE\s+\w+\s+(\w+\s+){0,2}SET\b", re.IGNORECASE)
LOOK_FOR_COMMITS = "PRAGMA data_version"
"""How SQLite tells whether there was a commit: it reads no rows, and is not counted."""

Counts = Counter[tuple[str, str]]
"""Statements by role and kind."""
role_of_connections: ContextVar[str] = ContextVar("endwell_bench_role", default="worker")
"""The role that opens connections; the heartbeat's thread, which only a worker has, sees the default."""


def idle_measurement(ground: Ground, seconds: float) -> Measurement:
    """What a worker and a PMO use while there is no work."""
    kinds = ("cpu", "statements", "writes")
    gives = tuple(f"idle_{kind}_{role}" for kind in kinds for role in ROLES)
    return Measurement("idle processes", gives, partial(_measure_idle, ground, seconds))


async def _measure_idle(ground: Ground, seconds: float) -> list[Row]:
    async with ground.make_place() as place, _count_statements(ground) as counts:
        clock = place.runtime.clock
        pids = {role: (await place.start(role))[0].pid for role in ROLES}
        await place.runtime.sleep(SETTLE_SECONDS)
        before = {role: cpu_seconds(pid) for role, pid in pids.items()}
        counts.clear()
        begin = clock.monotonic()
        await place.runtime.sleep(seconds)
        sent = Counter(counts)
        used = {role: (before[role], cpu_seconds(pid)) for role, pid in pids.items()}
        passed = clock.monotonic() - begin
        await place.stop()
    n = round(passed)
    rows = [
        Row(f"idle_cpu_{role}", ground.store_kind, 100 * (late - early) / passed, "% of a core", n)
        for role, (early, late) in used.items()
        if early is not None and late is not None  # some systems do not tell
    ]
    for role in ROLES:
        for what in ("statements", "writes"):
            rate = sent[role, what] * 60 / passed
            rows.append(Row(f"idle_{what}_{role}", ground.store_kind, rate, "per minute", n))
    return rows


@contextlib.asynccontextmanager
async def _count_statements(ground: Ground) -> AsyncIterator[Counts]:
    """Run a worker and a PMO in this process, and count their statements by role."""
    counts: Counts = Counter()
    count_on = on_sqlite if ground.store_kind == "sqlite" else on_postgres
    with count_on(counts):
        async with contextlib.AsyncExitStack() as nodes:
            for role in ROLES:
                await _start_idle(ground, role, nodes)
            yield counts


async def _start_idle(ground: Ground, role: str, nodes: contextlib.AsyncExitStack) -> None:
    token = role_of_connections.set(role)
    try:
        node = await nodes.enter_async_context(ground.make_app().connect())
        services = Services(node, worker=role == "worker", pmo=role == "pmo")
        await services.start()
        nodes.push_async_callback(services.stop)
    finally:
        role_of_connections.reset(token)


def _count_one(counts: Counts, role: str, statement: str) -> None:
    if statement == LOOK_FOR_COMMITS:
        return
    counts[role, "statements"] += 1
    if WRITES.search(statement):
        counts[role, "writes"] += 1


@contextlib.contextmanager
def on_sqlite(counts: Counts) -> Iterator[None]:
    """Count the statements of every connection that is opened in the block."""

    def watch_connection(connection: apsw.Connection) -> None:
        role = role_of_connections.get()

        def count_statement(cursor: Any, statement: str, bindings: Any) -> bool:
            _count_one(counts, role, statement)
            return True

        connection.exec_trace = count_statement

    apsw.connection_hooks.append(watch_connection)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(watch_connection)


@contextlib.contextmanager
def on_postgres(counts: Counts) -> Iterator[None]:
    """Count the statements of every connection that is opened in the block."""
    import asyncpg

    connect: Callable[..., Awaitable[Any]] = asyncpg.connect

    async def connect_watched(*arguments: Any, **options: Any) -> Any:
        connection = await connect(*arguments, **options)
        role = role_of_connections.get()
        connection.add_query_logger(lambda record: _count_one(counts, role, record.query))
        return connection

    asyncpg.connect = asyncpg.connection.connect = connect_watched  # a pool takes the second
    try:
        yield
    finally:
        asyncpg.connect = asyncpg.connection.connect = connect
