"""Kinds of real faults: kills and freezes at commits, moments and system calls; full disks, bad lines."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from endwell.model.facts import TaskReclaimed
from endwell.model.task import Task
from endwell.runtime.child_process import ChildProcess
from tests.patience import PATIENCE_SECONDS
from tests.proof.faults.fault import Fault
from tests.servers.proxy import Cut, Proxy
from tests.store.log_bytes import PAGE_BYTES, log_bytes

if TYPE_CHECKING:
    from tests.proof.faults.run import Run

Where = Literal["before", "after"]
SYSTEM_CALLS: Final = ("fdatasync", "pwrite64")
"""System calls of a commit on SQLite."""
DAY_SECONDS: Final = 86_400.0


class _Struck(Fault):
    """A fault whose worker prints `struck` just before it happens, or is simply gone."""

    _child: ChildProcess

    async def look(self, task: Task) -> None:
        if not self.is_struck:
            self.is_struck = self._was_struck()

    def _was_struck(self) -> bool:
        try:
            while (line := self._child.read_line(0)) is not None:
                if line == "struck":
                    return True
        except TimeoutError:
            return False
        return self._child.poll() is not None


class KilledAtCommit(_Struck):
    """kill -9 inside a commit: before its last statement, or before any answer."""

    counts_as = "kills"

    def __init__(self, at: int, where: Where, shift_seconds: float = 0.0) -> None:
        super().__init__()
        self.at = at
        self.where = where
        self.shift_seconds = shift_seconds
        if where == "after":
            self.steps_again = 0  # type: ignore[misc]

    async def begin(self, run: Run, stack: AsyncExitStack) -> None:
        trap = {"at": self.at, "where": self.where, "how": "kill"}
        self._child = run.worker(None, shift_seconds=self.shift_seconds, **trap)

    async def look(self, task: Task) -> None:
        await super().look(task)
        self.counts = self.is_struck


class FrozenAtCommit(_Struck):
    """SIGSTOP after a commit, SIGCONT after the lease has expired and another worker has the task."""

    counts_as = "zombies"
    may_differ = True

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    async def begin(self, run: Run, stack: AsyncExitStack) -> None:
        self._run = run
        self._child = run.worker(at=self.at, where="after", how="freeze")

    async def look(self, task: Task) -> None:
        await super().look(task)
        if not self.is_struck:
            return
        events = await self._run.world.store.events_of_task(task.namespace, task.id)
        was_held = any(event.type == TaskReclaimed.type for event in events)
        if (was_held and task.attempt_id is not None) or task.is_ended or task.status == "blocked":
            self._child.thaw()
            self.counts = was_held


class KilledAtMoment(Fault):
    """kill -9 at an arbitrary moment; counts if the worker held the task then."""

    counts_as = "kills"

    def __init__(self, after_looks: int) -> None:
        super().__init__()
        self.after_looks = after_looks

    async def begin(self, run: Run, stack: AsyncExitStack) -> None:
        self._run = run
        self._child = run.worker()
        self._looks = 0

    async def look(self, task: Task) -> None:
        if self.is_struck or task.attempt_id is None:
            return
        self._looks += 1
        if self._looks < self.after_looks:
            return
        self._child.freeze()  # so that the rows read next do not change before it dies
        store, namespace = self._run.world.store, self._run.world.namespace
        now = await store.task(namespace, task.id)
        session = await store.session(namespace, now.session_id) if now.session_id else None
        self.counts = session is not None and session.pid == self._child.pid
        if not self.counts and not now.is_ended:
            self._child.thaw()  # it has just released the task: try the next moment
            return
        self._child.kill()
        self.is_struck = True


class KilledAtSystemCall(_Struck):
    """kill -9 on entering the n-th fdatasync or write of the worker, by strace."""

    counts_as = "kills"

    def __init__(self, call: str, number: int) -> None:
        super().__init__()
        self.call = call
        self.number = number

    @staticmethod
    def is_possible() -> bool:
        """Whether strace is installed and may trace other processes."""
        strace = shutil.which("strace")
        if strace is None:
            return False
        tried = [strace, "-o", "/dev/null", "-e", "trace=none", "true"]
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0

    async def begin(self, run: Run, stack: AsyncExitStack) -> None:
        self._child = run.worker(waits=True)
        assert await asyncio.to_thread(self._child.read_line, PATIENCE_SECONDS) == "ready"
        inject = f"inject={self.call}:signal=SIGKILL:when={self.number}"
        argv = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={self.call}", "-e", inject]
        self._strace = await asyncio.create_subprocess_exec(
            *argv, "-p", str(self._child.pid), stderr=asyncio.subprocess.PIPE
        )
        stack.callback(self._end_strace)
        assert self._strace.stderr is not None
        await asyncio.wait_for(self._strace.stderr.readline(), PATIENCE_SECONDS)  # "attached"
        os.kill(self._child.pid, signal.SIGUSR1)  # it may begin

    def _end_strace(self) -> None:
        with suppress(ProcessLookupError):
            self._strace.kill()

    async def look(self, task: Task) -> None:
        await super().look(task)
        self.counts = self.is_struck


class DiskFull(Fault):
    """For a while the log cannot grow beyond some size (RLIMIT_FSIZE); no process dies."""

    def __init__(self, part: float, seconds: float) -> None:
        super().__init__()
        self.part = part
        self.seconds = seconds

    async def begin(self, run: Run, stack: AsyncExitStack) -> None:
        path = Path(run.world.app.url.removeprefix("sqlite:///"))
        size = int(log_bytes(path) * self.part)
        self._child = run.worker(file_bytes=max(size, PAGE_BYTES), full_seconds=self.seconds)

    async def look(self, task: Task) -> None:
        self.counts = self.counts or _has_printed(self._child, "full")


def _has_printed(child: ChildProcess, word: str) -> bool:
    try:
        while (line := child.read_line(0)) is not None:
            if line == word:
                return True
    except TimeoutError:
        pass
    return False


class BadLine(Fault):
    """The connection to PostgreSQL swallows a reply, is cut, delays everything, or passes nothing."""

    steps_again: ClassVar[int] = 2
    may_differ = True
    WAYS: ClassVar[tuple[str, ...]] = ("before", "after", "silent", "cut", "delay", "black hole")

    def __init__(self, way: str, after_looks: int) -> None:
        super().__init__()
        self.way = way
        self.after_looks = after_looks

    async def begin(self, run: Run, stack: AsyncExitStack) -> None:
        self._proxy = await stack.enter_async_context(Proxy(run.world.app.url))
        stack.callback(self._proxy.heal)
        self._looks = 0
        run.worker(self._proxy.url)

    async def look(self, task: Task) -> None:
        if task.attempt_id is None and not self.counts:
            return
        self._looks += 1
        if self._looks == self.after_looks:
            self._strike()
            self.counts = True
        if self._looks == self.after_looks + 60:
            self._proxy.delay_seconds = 0.0
            self._proxy.heal()
            self.is_struck = True  # another worker may help, if this one was given up

    def _strike(self) -> None:
        ways: dict[str, Callable[[], object]] = {
            "cut": self._proxy.cut_all,
            "black hole": self._proxy.black_hole,
            "delay": lambda: setattr(self._proxy, "delay_seconds", 0.05),
        }
        cuts: tuple[Cut, ...] = ("before", "after", "silent")
        ways |= {cut: lambda cut=cut: self._proxy.trap(b"COMMIT\0", cut) for cut in cuts}  # type: ignore[misc]
        ways[self.way]()


def choose_kill(dice: Random, commits: int, calls: int, *, is_sqlite: bool, may_trace: bool) -> Fault:
    """Choose a kill: half of them at a commit, the others at a moment or inside a system call."""
    pick = dice.random()
    if pick < 0.25 and is_sqlite and may_trace:
        return KilledAtSystemCall(dice.choice(SYSTEM_CALLS), dice.randrange(1, calls + 1))
    if pick < 0.5:
        return KilledAtMoment(dice.randrange(1, 6))
    shift = 0.0 if is_sqlite or dice.random() < 0.7 else dice.choice((-DAY_SECONDS, DAY_SECONDS))
    where: Where = dice.choice(("before", "after"))
    return KilledAtCommit(dice.randrange(1, commits + 1), where, shift)


def choose_trouble(dice: Random, *, is_sqlite: bool) -> Fault:
    """Choose a fault that kills no process."""
    if is_sqlite:
        return DiskFull(dice.random(), dice.uniform(0.3, 1.5))
    return BadLine(dice.choice(BadLine.WAYS), dice.randrange(1, 8))
