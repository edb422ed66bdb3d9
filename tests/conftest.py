"""Fixtures for all tests: databases and servers; and the option `--quick`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers.postgres import Postgres, PostgresServer, postgres_for_tests
from tests.servers.small import NatsServer, SmallServer, ValkeyServer

TESTS = Path(__file__).parent


def pytest_configure() -> None:
    """Use Python's own event loop, and react to Ctrl-C.

    Users without extras have Python's own event loop, so most tests and their processes use it; tests of the
    command line use uvloop. A background job of a shell ignores Ctrl-C, and so would the processes that a
    test interrupts.
    """
    os.environ.setdefault("ENDWELL_EVENT_LOOP", "asyncio")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


QUICK = (
    "client",
    "doorbell",
    "external",
    "machine",
    "model",
    "operate",
    "pmo",
    "policy",
    "runtime",
    "store",
    "turn",
    "worker",
)
"""Rooms of `--quick`: a change of the product usually breaks one of their tests first."""
NOT_QUICK = frozenset(
    (
        "machine/walk/test_explore.py",
        "machine/walk/test_planted_defects.py",
        "machine/walk/test_planted_inside.py",
        "machine/walk/test_stateful.py",
        "operate/test_bounds.py",
        "pmo/test_server_faults.py",
        "store/contract/test_processes.py",
        "store/contract/test_random_runs.py",
        "store/sqlite/test_large_batches.py",
        "turn/effects/test_effect_crashes.py",
        "worker/test_every_commit.py",
        "worker/test_processes.py",
    )
)
"""Files of these rooms that take longest: walks, random histories and real processes."""
WHOLE_SUITE = (
    "the whole suite takes about ten minutes on two idle processors, and longer while they are busy; "
    "`make test-quick` takes about two"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--quick`."""
    parser.addoption("--quick", action="store_true", help="a selection for the inner loop, about two minutes")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say how long the run takes, before it begins."""
    if config.getoption("quick"):
        return "a selection for the inner loop: about two minutes on two idle processors"
    is_part = config.args_source is pytest.Config.ArgsSource.ARGS
    return None if is_part else WHOLE_SUITE


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--quick`, collect only the rooms and files of the inner loop."""
    if not config.getoption("quick") or not collection_path.is_relative_to(TESTS):
        return None
    place = collection_path.relative_to(TESTS)
    is_left_out = bool(place.parts) and (place.parts[0] not in QUICK or place.as_posix() in NOT_QUICK)
    return True if is_left_out else None


Small = TypeVar("Small", bound=SmallServer)

pytest_plugins = ["pytester", "tests.requirement_report", "tests.tally"]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The PostgreSQL server that this process shares among its tests; started on first use."""
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


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis server that this process shares among its tests; started on first use."""
    yield from _url_of(ValkeyServer)


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A NATS server that this process shares among its tests; started on first use."""
    yield from _url_of(NatsServer)


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A Redis server for this test alone, to be killed and started at will."""
    yield from _running(ValkeyServer())


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """A NATS server for this test alone, to be killed and started at will."""
    yield from _running(NatsServer())


def _url_of(kind: type[SmallServer]) -> Iterator[str]:
    if named := os.environ.get(kind.variable):
        yield named
        return
    for server in _running(kind()):
        yield server.url


def _running(server: Small) -> Iterator[Small]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
