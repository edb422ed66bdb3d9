"""A world to test in, on each database."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers.postgres import Postgres
from tests.store.world import Database, PostgresDatabase, SqliteDatabase, World


@pytest.fixture
def sqlite_database(tmp_path: Path) -> SqliteDatabase:
    return SqliteDatabase(tmp_path / "endwell.db")


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_server: Postgres) -> str:
    return postgres_server.create_database()


@pytest.fixture
async def postgres_database(shared_postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    """A schema of its own in a database that the tests share: five times cheaper than a database each.

    It is dropped in the end, which also shows that no store left a lock behind.
    """
    name = f"world_{uuid.uuid4().hex}"
    database = PostgresDatabase(shared_postgres_url)
    await database.sql(f"CREATE SCHEMA {name}")
    yield PostgresDatabase(f"{shared_postgres_url}?search_path={name}")
    await database.sql(f"SET client_min_messages = warning; DROP SCHEMA {name} CASCADE")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """A fresh database of each kind in turn."""
    made: Database = request.getfixturevalue(f"{request.param}_database")
    return made


@pytest.fixture
async def world(database: Database) -> AsyncIterator[World]:
    """An open store on each kind of database, and the words to move its tasks."""
    world = World(database)
    await world.open()
    yield world
    await world.close()
