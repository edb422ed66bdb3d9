"""An installation whose turns travel over Redis Streams, on a real server, and a look at its streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from endwell.runtime import SystemClock
from tests.patience import PATIENCE_SECONDS
from tests.servers.postgres import Postgres
from tests.streams.hand import Hand
from tests.streams.programs import Programs
from tests.streams.streamed import SETTINGS, Streamed
from tests.support.world import World


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_server: Postgres) -> str:
    """One database for many tests, each in a namespace of its own."""
    return postgres_server.create_database()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh SQLite file."""
    return f"sqlite:///{tmp_path}/endwell.db"


@pytest.fixture(params=("sqlite", "postgres"))
def store_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """A store of each kind."""
    return sqlite_url if request.param == "sqlite" else str(request.getfixturevalue("shared_postgres_url"))


async def _streamed(store_url: str, redis_url: str) -> AsyncIterator[Streamed]:
    settings = {**SETTINGS, "redis.url": redis_url}
    async with World(store_url, settings=settings, clock=SystemClock()) as world:
        streamed = Streamed(world, redis_url)
        try:
            yield streamed
        finally:
            await streamed.remove_all()


@pytest.fixture
async def streamed(sqlite_url: str, redis_url: str) -> AsyncIterator[Streamed]:
    """On SQLite, with the shared server."""
    async for each in _streamed(sqlite_url, redis_url):
        yield each


@pytest.fixture
async def on_each_store(store_url: str, redis_url: str) -> AsyncIterator[Streamed]:
    """On each store, with the shared server."""
    async for each in _streamed(store_url, redis_url):
        yield each


@pytest.fixture
def programs() -> Iterator[Programs]:
    found = Programs()
    yield found
    for process in found.started:
        process.kill()
        process.wait(PATIENCE_SECONDS)


@pytest.fixture
async def hand(streamed: Streamed) -> Hand:
    return Hand(streamed, await streamed.orchestrator())
