"""Connections to PostgreSQL: how they are made, how the schema gets there, how a lost one is ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from endwell.errors import UsageError
from endwell.runtime.base import Runtime
from endwell.settings import mask_url
from endwell.store.migrations import missing_migrations
from endwell.store.postgres import errors
from endwell.store.postgres.statements import QUERIES

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 60.0
"""How long a connection without questions stays open."""
COMMAND_SECONDS = 15.0
"""How long a statement may take before the connection counts as lost."""
MIGRATION_LOCK: Final = 0x656E6477656C6C
"""The advisory lock that starting processes take turns with."""
MIGRATION_SECONDS: Final = 3600.0
"""Timeout for one migration, or for waiting on another process that is migrating."""
_LOOK_AGAIN_SECONDS = 0.01

_EVERYWHERE: Final = {
    "application_name": "endwell",
    "default_transaction_isolation": "read committed",
    "jit": "off",  # our statements take microseconds; compiling one takes longer
    "lock_timeout": "5s",  # a locked table is not a server that is away
    "tcp_keepalives_idle": "10",  # locks of a machine that vanished are freed within half a minute
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# Planned once: by index, in nested loops, for tables of any size. Probes and single rows are read all the
# time: a worker's probe takes 0.3 ms so, and 1.7 ms when it is planned each time.
STEADY: Final = _EVERYWHERE | {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
}
# Every statement of the door is of this kind, too.
COMMITTING: Final = STEADY | {
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "10s",  # a frozen process must not keep its rows' locks
}
# Other questions are many and rare, and their filters vary: each is planned for what it asks.
READING: Final = _EVERYWHERE | {"plan_cache_mode": "force_custom_plan"}


CONNECT_OPTIONS: Final[dict[str, Any]] = {
    "timeout": CONNECT_SECONDS,
    "command_timeout": COMMAND_SECONDS,
    "statement_cache_size": 500,
    "max_cached_statement_lifetime": 0,
    "max_cacheable_statement_size": 0,
}


def asyncpg_module() -> Any:
    """Import asyncpg, which only users of PostgreSQL need."""
    try:
        import asyncpg
    except ImportError:
        raise UsageError(
            "PostgreSQL needs the asyncpg package", hint='pip install "endwell[postgres]"'
        ) from None
    return asyncpg


async def connect(url: str, settings: dict[str, str]) -> Any:
    """Return a connection. Its statements stay prepared for as long as it lives."""
    asyncpg = asyncpg_module()
    try:
        return await asyncpg.connect(url, server_settings=settings, **CONNECT_OPTIONS)
    except (ValueError, asyncpg.ClientConfigurationError):
        # without asyncpg's words: they may quote a part of the password
        raise UsageError(
            f"{mask_url(url)} is not a PostgreSQL URL", hint="postgresql://user@host/database"
        ) from None


def make_pool(url: str, settings: dict[str, str], *, size: int) -> Any:
    """Return a pool, to be awaited, of at most `size` connections; it makes them when they are needed."""
    return asyncpg_module().create_pool(
        url,
        min_size=0,
        max_size=size,
        max_inactive_connection_lifetime=IDLE_SECONDS,
        server_settings=settings,
        reset=_keep_as_it_is,
        **CONNECT_OPTIONS,
    )


@asynccontextmanager
async def borrow(pool: Any) -> AsyncIterator[Any]:
    """Borrow a connection from a pool; close it if it was lost or the borrower was cancelled."""
    async with pool.acquire() as connection:
        try:
            yield connection
        except BaseException as error:
            if errors.is_lost(error) or not isinstance(error, Exception):
                with suppress(asyncpg_module().InterfaceError):  # a lost connection may have left the pool
                    connection.terminate()
            raise


async def _keep_as_it_is(_: Any) -> None:
    """Our questions leave nothing behind on a connection; asyncpg's own reset is one more round trip."""


async def is_migrated(connection: Any) -> bool:
    """Whether the schema is up to date."""
    return not missing_migrations("postgres", await _schema_version(connection))


async def migrate(connection: Any) -> int:
    """Bring the schema up to date; processes that start at once take turns. Returns its version."""
    applied = await _schema_version(connection)
    if not missing_migrations("postgres", applied):
        return applied
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = 0")
        lock = "SELECT pg_advisory_xact_lock($1)"
        await connection.execute(lock, MIGRATION_LOCK, timeout=MIGRATION_SECONDS)
        # Not to_regclass: it may still remember, from before the wait, that there was no such table.
        await connection.execute("CREATE TABLE IF NOT EXISTS endwell_schema (version int NOT NULL)")
        applied = int(await connection.fetchval("SELECT max(version) FROM endwell_schema") or 0)
        for step in missing_migrations("postgres", applied):
            await connection.execute(step.sql, timeout=MIGRATION_SECONDS)
            applied = step.number
        await connection.execute("DELETE FROM endwell_schema")
        await connection.execute("INSERT INTO endwell_schema VALUES ($1)", applied)
    return applied


async def _schema_version(connection: Any) -> int:
    if await connection.fetchval("SELECT to_regclass('endwell_schema')") is None:
        return 0
    return int(await connection.fetchval("SELECT max(version) FROM endwell_schema") or 0)


async def raise_positions(connection: Any) -> None:
    """Raise the sequence of positions above all that were used: a copy of the tables leaves it behind."""
    if await connection.fetchval(QUERIES["missing_positions"]) is None:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        position = await connection.fetchval(QUERIES["missing_positions"])
        if position is not None:
            await connection.execute("SELECT setval('events_seq_seq', $1)", position)


class Backend(NamedTuple):
    """The server's process behind a connection; process ids are used again, start times are not."""

    pid: int
    started: Any


async def backend_of(connection: Any) -> Backend:
    """Return the server's process behind this connection."""
    row = await connection.fetchrow(
        "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    )
    return Backend(row[0], row[1])


async def end_backend(connection: Any, backend: Backend, runtime: Runtime) -> None:
    """End the server's process behind a lost connection, and wait until its transaction has ended.

    Only then can one know whether a COMMIT whose answer was lost took place.
    """
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
    while await connection.fetch(end, *backend):
        await runtime.sleep(_LOOK_AGAIN_SECONDS)
