"""Processes of test servers: their user, directory, port and end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import random
import signal
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

import psutil

PORTS = range(20_000, 32_000)  # below the range from which outgoing connections take theirs
PR_SET_PDEATHSIG = 1
IPC_RMID = 0


class RunAs(TypedDict, total=False):
    """The subprocess arguments for the user that a server runs as; empty for the current user."""

    user: int
    group: int
    extra_groups: list[int]


def unprivileged() -> RunAs:
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def everyone_can_enter(directory: Path) -> bool:
    resolved = directory.resolve()
    return all(place.stat().st_mode & stat.S_IXOTH for place in [resolved, *resolved.parents])


def private_directory(prefix: str, run_as: RunAs) -> Path:
    """Make a directory that only the server's user may enter."""
    usual = Path(tempfile.gettempdir())
    parent = usual if not run_as or everyone_can_enter(usual) else Path("/tmp")  # noqa: S108 (mkdtemp is safe)
    home = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    if run_as:
        os.chown(home, run_as["user"], run_as["group"])
    return home


def free_port() -> int:
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")


def die_with_parent() -> None:
    """Ask the kernel to interrupt this process when the thread that started it ends; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def kill_family(pid: int) -> None:
    """Kill a process and its descendants at once."""
    head = psutil.Process(pid)
    head.suspend()  # or it could start another child while we look
    for victim in [*head.children(recursive=True), head]:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()


def release_shared_memory(segment: int) -> None:
    """Free a System V segment that a killed server could not free itself; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)
