"""What doing nothing costs: processor time of real idle processes, and the statements that they send.

Processor time is the kernel's word on `endwell worker` and `endwell pmo`. Statements are counted in
this process, where the same worker and PMO run with the same settings on stores of their own.
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
from endwell.bench.drain import Measured, Measurement
from endwell.bench.place import Ground
from endwell.bench.rows import Row
from endwell.runtime.processes import cpu_seconds

SETTLE_SECONDS = 2.0
ROLES = ("worker", "pmo")
WRITES = re.compile(r"\bINSERT\s+INTO\b|\bDELETE\s+FROM\b|\bUPDATE\s+\w+\s+(\w+\s+){0,2}SET\b", re.IGNORECASE)
LOOK_FOR_COMMITS = "PRAGMA data_version"
"""How SQLite says whether anything was committed: it asks for no rows, and is not counted."""

role_of_connections: ContextVar[str] = ContextVar("endwell_bench_role", default="worker")
"""For whom connections are opened; the heartbeat's own thread, which only a worker has, sees the default."""


def idle(ground: Ground, seconds: float) -> Measurement:
    """What a worker and a PMO use while there is nothing to do."""
    kinds = ("cpu", "statements", "writes")
    gives = tuple(f"idle_{kind}_{role}" for kind in kinds for role in ROLES)
    return Measurement("idle processes", gives, partial(_idle, ground, seconds))


async def _idle(ground: Ground, seconds: float) -> Measured:
    """Both kinds of process idle for a while, and what they used meanwhile."""
    async with ground.place() as place, _counted(ground) as counts:
        members = {role: (await place.start(role))[0] for role in ROLES}
        await place.runtime.sleep(SETTLE_SECONDS)
        before = {role: cpu_seconds(member.pid) for role, member in members.items()}
        counts.clear()
        begin = place.runtime.clock.monotonic()
        await place.runtime.sleep(seconds)
        sent = Counter(counts)
        after = {role: cpu_seconds(member.pid) for role, member in members.items()}
        passed = place.runtime.clock.monotonic() - begin
        await place.stop()
    rows = _cpu_rows(ground.kind, before, after, passed) + _statement_rows(ground.kind, sent, passed)
    return Measured(rows, [])


def _cpu_rows(
    kind: str, before: dict[str, float | None], after: dict[str, float | None], passed: float
) -> list[Row]:
    used = {role: (before[role], after[role]) for role in ROLES}
    return [
        Row(f"idle_cpu_{role}", kind, 100 * (late - early) / passed, "% of a core", round(passed))
        for role, (early, late) in used.items()
        if early is not None and late is not None  # only where the kernel tells
    ]


def _statement_rows(kind: str, sent: Counter[tuple[str, str]], passed: float) -> list[Row]:
    return [
        Row(f"idle_{what}_{role}", kind, sent[role, what] * 60 / passed, "per minute", round(passed))
        for role in ROLES
        for what in ("statements", "writes")
    ]


@contextlib.asynccontextmanager
async def _counted(ground: Ground) -> AsyncIterator[Counter[tuple[str, str]]]:
    """A worker and a PMO in this process, every statement of theirs counted by role."""
    counts: Counter[tuple[str, str]] = Counter()
    count_on = on_sqlite if ground.kind == "sqlite" else on_postgres
    with count_on(counts):
        async with contextlib.AsyncExitStack() as open_nodes:
            for role in ROLES:
                await _run_beside(ground, role, open_nodes)
            yield counts


async def _run_beside(ground: Ground, role: str, open_nodes: contextlib.AsyncExitStack) -> None:
    token = role_of_connections.set(role)
    try:
        node = await open_nodes.enter_async_context(ground.app().connect())
        services = Services(node, worker=role == "worker", pmo=role == "pmo")
        await services.start()
        open_nodes.push_async_callback(services.stop)
    finally:
        role_of_connections.reset(token)


def _note(counts: Counter[tuple[str, str]], role: str, statement: str) -> None:
    if statement == LOOK_FOR_COMMITS:
        return
    counts[role, "statements"] += 1
    if WRITES.search(statement):
        counts[role, "writes"] += 1


@contextlib.contextmanager
def on_sqlite(counts: Counter[tuple[str, str]]) -> Iterator[None]:
    """Count what every connection that is opened from now on executes."""

    def watch(connection: apsw.Connection) -> None:
        role = role_of_connections.get()

        def trace(cursor: Any, statement: str, bindings: Any) -> bool:
            _note(counts, role, statement)
            return True

        connection.exec_trace = trace

    apsw.connection_hooks.append(watch)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(watch)


@contextlib.contextmanager
def on_postgres(counts: Counter[tuple[str, str]]) -> Iterator[None]:
    """Count what every connection that is opened from now on executes."""
    import asyncpg

    connect: Callable[..., Awaitable[Any]] = asyncpg.connect

    async def watched(*arguments: Any, **options: Any) -> Any:
        connection = await connect(*arguments, **options)
        role = role_of_connections.get()
        connection.add_query_logger(lambda record: _note(counts, role, record.query))
        return connection

    asyncpg.connect = asyncpg.connection.connect = watched  # a pool takes the second
    try:
        yield
    finally:
        asyncpg.connect = asyncpg.connection.connect = connect
