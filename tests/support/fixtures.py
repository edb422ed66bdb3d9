"""Worlds on both stores: one whose time the test moves, and one in which real time passes quickly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from endwell.runtime import SystemClock
from tests.servers.postgres import Postgres
from tests.support.world import TINY, World

STORES = ("sqlite", "postgres")


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_server: Postgres) -> str:
    """One database for many tests, each in a namespace of its own: making a database takes a second."""
    return postgres_server.create_database()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh SQLite file."""
    return f"sqlite:///{tmp_path}/endwell.db"


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """A store of each kind."""
    return sqlite_url if request.param == "sqlite" else str(request.getfixturevalue("shared_postgres_url"))


@pytest.fixture
async def world(store_url: str) -> AsyncIterator[World]:
    """On each store; time stands still until the test moves it."""
    async with World(store_url) as world:
        yield world


@pytest.fixture
async def sqlite_world(sqlite_url: str) -> AsyncIterator[World]:
    """For what does not depend on the store."""
    async with World(sqlite_url) as world:
        yield world


@pytest.fixture
async def quick_world(store_url: str) -> AsyncIterator[World]:
    """On each store, in real time, with leases that lapse soon."""
    async with World(store_url, settings=TINY, clock=SystemClock()) as world:
        yield world


@pytest.fixture
async def clerk(world: World) -> World:
    """Has an agent that no worker serves yet."""

    @world.app.agent("clerk")
    async def run(payload: Any = None) -> str:
        return "done"

    await world.registered("clerk")
    return world
