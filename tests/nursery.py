"""Real processes without the price of starting Python: one process imports everything and forks them.

`born("tests.support.ten_steps", {...})` returns a child that runs that module's `main(about)` in a group of
its own. The child dies with the nursery, which dies with the test process. For the system and for Endwell it
is an ordinary process, with its own id, memory and files.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, Any, Final, cast

from endwell.runtime.child_process import ChildProcess
from endwell.runtime.loops import new_loop

ROOT: Final = Path(__file__).parents[1]
PRELOADED: Final = (
    "asyncpg",
    "endwell.doorbell.local",
    "endwell.doorbell.postgres",
    "endwell.store.postgres.store",
    "endwell.store.sqlite.effect_store",
    "endwell.store.sqlite.store",
    "endwell.worker.worker",
    "tests.support.effect_process",
    "tests.support.ten_steps",
    "tests.support.worker_process",
)
_PR_SET_PDEATHSIG: Final = 1
_LARGEST: Final = 1024 * 1024
_ENDED_BY_ERROR: Final = 1


class _Forked:
    """The part of `Popen` that `ChildProcess` uses; the nursery is the parent and answers for it."""

    def __init__(self, nursery: Nursery, pid: int, stdout: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb", buffering=0)
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._nursery.ask({"poll": self.pid})["code"]
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        give_up_at = time.monotonic() + (1e9 if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > give_up_at:
                raise subprocess.TimeoutExpired("forked", timeout or 0)
            time.sleep(0.005)
        return code


class Nursery:
    """The forking process, and the socket to it."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._line, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()

    def born(self, module: str, about: dict[str, Any], env: dict[str, str]) -> ChildProcess:
        """Fork a process that runs `main(about)` of that module."""
        reading, writing = os.pipe()
        try:
            pid = self.ask({"module": module, "about": about, "env": env}, (writing,))["pid"]
        finally:
            os.close(writing)
        return ChildProcess(cast("subprocess.Popen[bytes]", _Forked(self, pid, reading)))

    def ask(self, request: dict[str, Any], files: tuple[int, ...] = ()) -> Any:
        """Send one request at a time, from any thread."""
        with self._asking:
            socket.send_fds(self._line, [json.dumps(request).encode() + b"\n"], files)
            return json.loads(_message(self._line)[0])


def born(module: str, about: dict[str, Any], **env: str) -> ChildProcess:
    """Fork a process from the nursery of this test process; `env` is set before the module is imported."""
    global _nursery
    if _nursery is None or _nursery[0] != os.getpid():
        _nursery = (os.getpid(), Nursery())
    return _nursery[1].born(module, about, env)


_nursery: tuple[int, Nursery] | None = None


def _message(line: socket.socket) -> tuple[bytes, list[int]]:
    """Read one message of the other side, and the files that came with it."""
    data, files = b"", list[int]()
    while not data.endswith(b"\n"):
        chunk, more, _, _ = socket.recv_fds(line, _LARGEST, 1)
        if not chunk:
            raise EOFError("the other side is gone")
        data += chunk
        files += more
    return data, files


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)


def _serve(line: socket.socket) -> None:
    while True:
        data, files = _message(line)
        request = json.loads(data)
        answer = {"code": _code_of(request["poll"])} if "poll" in request else _forked(line, request, files)
        line.sendall(json.dumps(answer).encode() + b"\n")


def _code_of(pid: int) -> int | None:
    with contextlib.suppress(ChildProcessError):
        found, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else None
    return _ENDED_BY_ERROR


def _forked(line: socket.socket, request: dict[str, Any], files: list[int]) -> dict[str, Any]:
    nursery = os.getpid()
    pid = os.fork()
    if pid == 0:
        _live(line, request, files[0], nursery)
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        os.setpgid(pid, pid)  # as the child does itself: the caller may signal the group at once
    os.close(files[0])
    return {"pid": pid}


def _live(line: socket.socket, request: dict[str, Any], stdout: int, nursery: int) -> None:
    code = _ENDED_BY_ERROR
    try:
        os.setpgid(0, 0)
        _die_with(nursery)
        line.close()
        os.dup2(stdout, 1)
        os.close(stdout)
        os.environ.update(request["env"])
        main = importlib.import_module(request["module"]).main
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main(request["about"]))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _main(descriptor: int) -> None:
    _die_with(os.getppid())
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that children share these pages instead of copying them at their first collection
    with contextlib.suppress(EOFError):
        _serve(socket.socket(fileno=descriptor))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
