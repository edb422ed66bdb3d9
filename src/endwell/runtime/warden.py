"""The warden: a small process between a worker and a program, which makes sure that the program ends.

Run by its path, with `-I -S` and nothing but the standard library, so that it starts at once:

    python -I -S warden.py CONTROL_FD GRACE_SECONDS MEMORY_BYTES PROGRAM [ARGUMENT ...]

The program gets the warden's standard input, output and error, and a session of its own. The warden holds
one end of a socket. When its owner closes the other end, or is killed, the warden ends the program and every
process that the program has started: SIGTERM, a grace period, SIGKILL. Processes that outlive the program are
killed too; on Linux also those that have left its process group.

It reads `limit SECONDS` from the socket. It writes `started PID` or `broken WHY`, then `ended CODE CAUSE`.
"""

# ruff: noqa: SIM105 (importing contextlib would cost milliseconds at every start)

from __future__ import annotations

import os
import select
import signal
import sys
import time

LOOK_SECONDS = 1.0
"""Time between two checks that its parent lives, in case a forked process holds the socket open."""
KILL_SECONDS = 5.0
"""Longest time that it tries to kill processes."""
PAUSE_SECONDS = 0.005
TYPE_CHECKING = False  # as in typing, whose import would take longer than all the others
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RESTORED = (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

if TYPE_CHECKING:
    from collections.abc import Callable

    Prctl = Callable[[int, int], int]


class Warden:
    """Watches one program from its start to its end."""

    def __init__(self, control: int, grace_seconds: float) -> None:
        self._control = control
        self._grace_seconds = grace_seconds
        self._parent = os.getppid()
        self._deadline = float("inf")
        self._unread = b""
        self._cause = ""
        self._code: int | None = None
        self._group = 0
        os.set_inheritable(control, False)
        self._wakeups, self._wake = os.pipe()
        for end in (self._wakeups, self._wake):
            os.set_blocking(end, False)

    def run(self, argv: list[str], memory_bytes: int) -> None:
        """Start the program, wait until it has ended or must end, and kill what is left of it."""
        prctl = _load_prctl()
        if prctl is not None:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._ignore_signals()
        if problem := self._start(argv, memory_bytes, prctl):
            self._write_line(f"broken {problem}")
            return
        self._write_line(f"started {self._group}")
        while self._code is None and not self._cause:
            self._wait_for_news(min(LOOK_SECONDS, max(0.0, self._deadline - time.monotonic())))
        if self._code is None:
            self._terminate_group()
        self._kill_all()
        self._write_line(f"ended {-signal.SIGKILL if self._code is None else self._code} {self._cause}")
        self._drain_socket()

    def _ignore_signals(self) -> None:
        """Ignore stop signals, since only the socket ends a warden; wake at the end of a child."""
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def _start(self, argv: list[str], memory_bytes: int, prctl: Prctl | None) -> str:
        """Start the program; return why it could not be started, or an empty text."""
        problem, say_problem = os.pipe()
        self._group = os.fork()  # this process has one thread
        if self._group == 0:
            _exec_program(argv, memory_bytes, prctl, say_problem)
        os.close(say_problem)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)  # or the reader would never see the program's end of output
        with os.fdopen(problem, "rb") as pipe:
            return pipe.read().decode()

    def _wait_for_news(self, seconds: float) -> None:
        """Wait for an ended child, a line from the socket, the deadline, or a dead parent."""
        ready, _, _ = select.select([self._control, self._wakeups], [], [], seconds)
        self._reap_children()
        if self._control in ready:
            self._read_socket()
        elif time.monotonic() >= self._deadline:
            self._cause = "timeout"
        elif os.getppid() != self._parent:
            self._cause = "stop"

    def _read_socket(self) -> None:
        try:
            received = os.read(self._control, 4096)
        except ConnectionError:
            received = b""
        if not received:
            self._cause = "stop"
            return
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            self._deadline = time.monotonic() + float(line.removeprefix(b"limit "))

    def _reap_children(self) -> None:
        """Collect every child that has ended: the program, or an orphan of it."""
        try:
            os.read(self._wakeups, 4096)
        except BlockingIOError:
            pass
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._group:
                    self._code = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            pass

    def _terminate_group(self) -> None:
        """Ask the program's group to end, and wait for the grace period."""
        until = time.monotonic() + self._grace_seconds
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a stopped process would not receive it
        while self._signal(0) and time.monotonic() < until:
            select.select([self._wakeups], [], [], PAUSE_SECONDS * 4)
            self._reap_children()

    def _kill_all(self) -> None:
        until = time.monotonic() + KILL_SECONDS
        while (self._signal(signal.SIGKILL) | self._kill_orphans()) and time.monotonic() < until:
            select.select([self._wakeups], [], [], PAUSE_SECONDS)
            self._reap_children()

    def _signal(self, number: int) -> bool:
        """Signal the program's group; return False when it has no process left."""
        try:
            os.killpg(self._group, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # the answer of macOS for a group of zombies
            return self._code is None
        return True

    def _kill_orphans(self) -> bool:
        """Kill processes of any group that became our children when their parent ended (Linux)."""
        me = os.getpid()
        try:
            with open(f"/proc/{me}/task/{me}/children") as file:
                orphans = [int(word) for word in file.read().split()]
        except OSError:
            return False
        for pid in orphans:  # we have not reaped them, so the number is still theirs
            os.kill(pid, signal.SIGKILL)
        return bool(orphans)

    def _drain_socket(self) -> None:
        """Read the socket to its end: closing it with unread bytes would discard our own last line."""
        try:
            while select.select([self._control], [], [], LOOK_SECONDS)[0] and os.read(self._control, 4096):
                pass
        except OSError:
            pass

    def _write_line(self, line: str) -> None:
        try:
            os.write(self._control, f"{line.strip()}\n".encode())
        except OSError:  # the owner is gone
            pass


def _exec_program(argv: list[str], memory_bytes: int, prctl: Prctl | None, say_problem: int) -> None:
    """Replace the forked child by the program; never return."""
    try:
        os.setsid()
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should the warden itself be killed
        for number in _RESTORED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if memory_bytes:
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        os.execvp(argv[0], argv)  # noqa: S606 (there is no shell in this, on purpose)
    except BaseException as error:
        os.write(say_problem, (str(error).replace("\n", " ") or type(error).__name__).encode())
    finally:
        os._exit(127)


def _load_prctl() -> Prctl | None:
    if sys.platform != "linux":
        return None
    import ctypes

    call: Prctl = ctypes.CDLL(None).prctl
    return call


def main() -> None:
    """Run a warden by its command line."""
    control, grace_seconds, memory_bytes, *argv = sys.argv[1:]
    Warden(int(control), float(grace_seconds)).run(argv, int(memory_bytes))


if __name__ == "__main__":
    main()
