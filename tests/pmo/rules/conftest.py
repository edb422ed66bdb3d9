"""The store's worlds: both databases, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.servers.postgres import Postgres
from tests.store.conftest import database, postgres_database, shared_postgres_url, sqlite_database, world
from tests.store.world import Database, PostgresDatabase, SqliteDatabase, World

__all__ = ["database", "postgres_database", "shared_postgres_url", "sqlite_database", "world"]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def lasting_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Database:
    """One database of each kind for a module's tests, because its setup takes longer than most of them."""
    if request.param == "sqlite":
        return SqliteDatabase(Path(tmp_path_factory.mktemp("rules")) / "endwell.db")
    server: Postgres = request.getfixturevalue("postgres_server")
    return PostgresDatabase(server.create_database())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lasting_world(lasting_database: Database) -> AsyncIterator[World]:
    """An open store that all tests of a module share; its time only advances."""
    lasting = World(lasting_database)
    await lasting.open()
    yield lasting
    await lasting.close()
