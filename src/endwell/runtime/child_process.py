"""Child processes.

A child has a process group of its own, so that one signal reaches it and everything it started. On Linux it
dies with its parent.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from endwell.runtime.processes import stands_still

DEVNULL = subprocess.DEVNULL
PIPE = subprocess.PIPE
Output = int | IO[bytes] | None

STANDSTILL_SECONDS = 10.0
"""Longest wait for a process to stop after SIGSTOP: a thread inside a system call stops late."""
_PR_SET_PDEATHSIG = 1


def start_process(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    cwd: str | Path | None = None,
    stdout: Output = PIPE,
    stderr: Output = None,
) -> ChildProcess:
    """Start a process in a group of its own, without standard input.

    With `stdout=PIPE` the caller must read the output (`read_line`), or the child blocks on a full
    pipe. On Linux the child is killed when the *thread* that started it ends: use a lasting one.
    """
    return ChildProcess(
        subprocess.Popen(
            list(argv),
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=_die_with_parent(),
        )
    )


class ChildProcess:
    """A started process. Signals go to its whole group, never to a process that has been reaped."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._unread = b""
        self.pid = process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code; raise TimeoutError when it takes longer."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s") from None

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it with SIGSTOP, and wait until all its threads have stopped."""
        self._signal(signal.SIGSTOP)
        give_up_at = time.monotonic() + STANDSTILL_SECONDS
        while self.poll() is None and not stands_still(self.pid) and time.monotonic() < give_up_at:
            time.sleep(0.001)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def read_line(self, timeout: float | None = None) -> str | None:
        """Read the next line of its output without the line end; None at the end of the output."""
        limit = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._unread:
            chunk = self._read_some(limit)
            if not chunk:
                rest, self._unread = self._unread, b""
                return rest.decode(errors="replace") if rest else None
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def close(self) -> None:
        """Close the pipe of its output."""
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read_some(self, limit: float | None) -> bytes:
        if self._process.stdout is None:
            raise ValueError("the child was not started with stdout=PIPE")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            left = None if limit is None else max(0.0, limit - time.monotonic())
            if not selector.select(left):
                raise TimeoutError(f"process {self.pid} printed no line in time")
        return os.read(self._process.stdout.fileno(), 65536)

    def _signal(self, number: signal.Signals) -> None:
        # Not yet reaped by us, its id cannot have been given to another process.
        if self.poll() is None:
            os.killpg(self.pid, number)


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    # Looked up before the fork: between fork and exec only the call itself is safe.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the kernel was asked
            os._exit(127)

    return ask_kernel
