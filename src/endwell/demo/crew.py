"""Endwell's own commands as child processes: started with clean settings, killed, frozen, replaced."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

import endwell
from endwell.errors import EndwellError
from endwell.runtime.base import Runtime
from endwell.runtime.child_process import ChildProcess, start_process
from endwell.runtime.loops import new_loop
from endwell.runtime.signals import on_stop_signals
from endwell.settings.sources import PLAIN_VARIABLES, PREFIX, STORE_VARIABLE

T = TypeVar("T")

READY_SECONDS = 30.0
"""How long a process may take until it prints that it is ready."""
END_SECONDS = 10.0
_LOOK_SECONDS = 0.02


def clean_environment(
    url: str, settings: Mapping[str, object], extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """This process's environment with these Endwell settings and no others.

    The store's URL travels here and not on the command line, where everybody could read its password.
    """
    env = {name: value for name, value in os.environ.items() if not _is_setting(name)}
    given = {PREFIX + key.upper().replace(".", "__"): str(value) for key, value in settings.items()}
    package = str(Path(endwell.__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, (package, env.get("PYTHONPATH"))))
    return {**env, **given, STORE_VARIABLE: url, "PYTHONPATH": search, **(extra or {})}


def _is_setting(name: str) -> bool:
    return name.upper().startswith("ENDWELL") or name in PLAIN_VARIABLES


def run_interruptibly(running: Coroutine[Any, Any, T]) -> T:
    """Run it on a new loop; Ctrl-C and SIGTERM cancel it, so that children and files are cleaned up."""
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(_until_interrupted(running))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _until_interrupted(running: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()

    def cancel(_count: int) -> None:
        if task is not None:
            task.cancel()

    restore = on_stop_signals(asyncio.get_running_loop(), cancel)
    try:
        return await running
    finally:
        restore()


class CrewMember:
    """One started process. Its successor after a kill is a new member with the same name."""

    def __init__(self, name: str, role: str, child: ChildProcess, output: Path) -> None:
        self.name = name
        self.role = role
        self.child = child
        self.pid = child.pid
        self.state = "starting"
        self._output = output

    @property
    def is_ready(self) -> bool:
        """Whether it has printed that it can work, and was not stopped since."""
        if self.state == "starting" and _printed_ready(self._output):
            self.state = "alive"
        return self.state == "alive"

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.child.kill()
        self.child.wait(END_SECONDS)
        self.state = "killed"

    def freeze(self) -> None:
        """SIGSTOP."""
        self.child.freeze()
        self.state = "frozen"

    def wake(self) -> None:
        """SIGCONT."""
        self.child.thaw()
        self.state = "alive"


class Crew:
    """The processes of one run, by name. Start and end it in the main thread: children die with theirs."""

    def __init__(self, runtime: Runtime, directory: Path, env: Mapping[str, str]) -> None:
        self._runtime = runtime
        self._directory = directory
        self._env = env
        self._started = 0
        self.members: dict[str, CrewMember] = {}

    def start(self, name: str, role: str, *options: str) -> CrewMember:
        """Start `endwell <role>`; its output goes to files in the run's directory."""
        self._started += 1
        output = self._directory / f"{self._started:02}-{name}.out"
        argv = [sys.executable, "-m", "endwell", role, "--json", *options]
        with _open_private(output) as stdout, _open_private(output.with_suffix(".log")) as stderr:
            child = start_process(argv, self._env, cwd=self._directory, stdout=stdout, stderr=stderr)
        member = self.members[name] = CrewMember(name, role, child, output)
        return member

    async def wait_ready(self, members: Sequence[CrewMember]) -> None:
        """Wait until each is ready; raise the log of a process that ends instead."""
        limit = self._runtime.clock.monotonic() + READY_SECONDS
        while waiting := [member for member in members if not member.is_ready]:
            for member in waiting:
                if (code := member.child.poll()) is not None:
                    raise EndwellError(
                        f"{member.name} ended with {code} before it was ready", hint=self.last_lines()
                    )
            if self._runtime.clock.monotonic() > limit:
                problem = f"{waiting[0].name} was not ready after {READY_SECONDS:g} s"
                raise EndwellError(problem, hint=self.last_lines())
            await self._runtime.sleep(_LOOK_SECONDS)

    def workers(self) -> list[CrewMember]:
        """The workers that run and are not frozen."""
        return [member for member in self.members.values() if member.role == "worker" and member.is_ready]

    def end(self) -> None:
        """Kill every process that still runs; at rest that harms nothing."""
        for member in self.members.values():
            if member.child.poll() is None:
                member.child.kill()
        for member in self.members.values():
            member.child.wait(END_SECONDS)

    def last_lines(self) -> str:
        """The last lines that any of them wrote to stderr."""
        logs = sorted(self._directory.glob("*.log"), key=lambda path: path.stat().st_mtime)
        text = logs[-1].read_text(errors="replace") if logs else ""
        return "\n".join(text.splitlines()[-5:])


def _open_private(path: Path) -> IO[bytes]:
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))


def _printed_ready(output: Path) -> bool:
    for line in output.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n") and b'"ready"' in line:
            event = msgspec.json.decode(line)
            return isinstance(event, dict) and event.get("event") == "ready"
    return False
