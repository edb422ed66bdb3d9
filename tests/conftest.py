"""What every test may ask for: a PostgreSQL database, and the report on covered requirements."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.postgres import Postgres, PostgresServer, postgres_for_tests

pytest_plugins = ["pytester", "tests.requirement_report"]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The PostgreSQL server this process shares among its tests; started by the first that asks."""
    server = postgres_for_tests()
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> str:
    """A fresh, empty database."""
    return postgres_server.create_database()


@pytest.fixture
def honest_postgres_server() -> Iterator[PostgresServer]:
    """A server for this test alone, with full durability, to be restarted and killed at will."""
    server = PostgresServer(fast=False)
    server.start()
    yield server
    server.stop()
