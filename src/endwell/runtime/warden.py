"""The warden: a small process between a worker and a program, which sees to it that the program ends.

Run by its path, with `-I -S` and nothing but the standard library, so that it starts at once:

    python -I -S warden.py CONTROL_FD GRACE_SECONDS MEMORY_BYTES PROGRAM [ARGUMENT ...]

The program gets the warden's standard input, output and error, and a session of its own. The warden holds
one end of a socket; when the other end closes, because its owner wants that or has been killed, it ends the
program and everything that the program has started: SIGTERM, a time of grace, SIGKILL. What outlives the
program is killed too. On Linux that includes what has left the program's process group.

Told on the socket: `limit SECONDS`. Says: `started PID` or `broken WHY`, then `ended CODE CAUSE`.
"""

# ruff: noqa: SIM105 (importing contextlib would cost milliseconds at every start)

from __future__ import annotations

import os
import select
import signal
import sys
import time

LOOK_SECONDS = 1.0
"""How often it looks whether its parent still lives, should a forked process hold the socket open."""
KILL_SECONDS = 5.0
"""How long it tries to kill what does not die."""
PAUSE_SECONDS = 0.005
TYPE_CHECKING = False  # as in typing, which would take longer to import than all the rest
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
        self._bell, self._wake = os.pipe()
        for end in (self._bell, self._wake):
            os.set_blocking(end, False)

    def run(self, argv: list[str], memory_bytes: int) -> None:
        """Start the program, wait until it has ended or must end, and leave nothing of it behind."""
        prctl = _prctl()
        if prctl is not None:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._hear_signals()
        if problem := self._start(argv, memory_bytes, prctl):
            self._say(f"broken {problem}")
            return
        self._say(f"started {self._group}")
        while self._code is None and not self._cause:
            self._look(min(LOOK_SECONDS, max(0.0, self._deadline - time.monotonic())))
        if self._code is None:
            self._terminate()
        self._kill_all()
        self._say(f"ended {-signal.SIGKILL if self._code is None else self._code} {self._cause}")
        self._leave()

    def _hear_signals(self) -> None:
        """Only the socket ends a warden; the end of a child wakes it."""
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def _start(self, argv: list[str], memory_bytes: int, prctl: Prctl | None) -> str:
        """Empty when the program runs, else what has kept it from running."""
        problem, say_problem = os.pipe()
        self._group = os.fork()  # this process has one thread
        if self._group == 0:
            _become(argv, memory_bytes, prctl, say_problem)
        os.close(say_problem)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)  # or the reader would never see the program's end of output
        with os.fdopen(problem, "rb") as pipe:
            return pipe.read().decode()

    def _look(self, seconds: float) -> None:
        """Wait for news: an ended child, a word from the socket, a deadline, a dead parent."""
        ready, _, _ = select.select([self._control, self._bell], [], [], seconds)
        self._reap()
        if self._control in ready:
            self._listen()
        elif time.monotonic() >= self._deadline:
            self._cause = "timeout"
        elif os.getppid() != self._parent:
            self._cause = "stop"

    def _listen(self) -> None:
        try:
            heard = os.read(self._control, 4096)
        except ConnectionError:
            heard = b""
        if not heard:
            self._cause = "stop"
            return
        *lines, self._unread = (self._unread + heard).split(b"\n")
        for line in lines:
            self._deadline = time.monotonic() + float(line.removeprefix(b"limit "))

    def _reap(self) -> None:
        """Take note of every child that has ended, the program or an orphan of its making."""
        try:
            os.read(self._bell, 4096)
        except BlockingIOError:
            pass
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._group:
                    self._code = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            pass

    def _terminate(self) -> None:
        """Ask the group to end, and give it time."""
        until = time.monotonic() + self._grace_seconds
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a stopped process would never hear of it
        while self._signal(0) and time.monotonic() < until:
            select.select([self._bell], [], [], PAUSE_SECONDS * 4)
            self._reap()

    def _kill_all(self) -> None:
        until = time.monotonic() + KILL_SECONDS
        while (self._signal(signal.SIGKILL) | self._kill_orphans()) and time.monotonic() < until:
            select.select([self._bell], [], [], PAUSE_SECONDS)
            self._reap()

    def _signal(self, number: int) -> bool:
        """Signal the program's group; False when nobody is left in it."""
        try:
            os.killpg(self._group, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS says so of a group of zombies
            return self._code is None
        return True

    def _kill_orphans(self) -> bool:
        """On Linux whoever loses its parent below us becomes our child, in whatever group it is."""
        me = os.getpid()
        try:
            with open(f"/proc/{me}/task/{me}/children") as file:
                orphans = [int(word) for word in file.read().split()]
        except OSError:
            return False
        for pid in orphans:  # not reaped by us yet, so the number is still theirs
            os.kill(pid, signal.SIGKILL)
        return bool(orphans)

    def _leave(self) -> None:
        """Hear the owner out: closing a socket with words unread would take our own last ones with it."""
        try:
            while select.select([self._control], [], [], LOOK_SECONDS)[0] and os.read(self._control, 4096):
                pass
        except OSError:
            pass

    def _say(self, line: str) -> None:
        try:
            os.write(self._control, f"{line.strip()}\n".encode())
        except OSError:  # nobody listens any more
            pass


def _become(argv: list[str], memory_bytes: int, prctl: Prctl | None, say_problem: int) -> None:
    """Turn the forked child into the program; never returns."""
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


def _prctl() -> Prctl | None:
    if sys.platform != "linux":
        return None
    import ctypes

    call: Prctl = ctypes.CDLL(None).prctl
    return call


def main() -> None:
    """The warden's whole life."""
    control, grace_seconds, memory_bytes, *argv = sys.argv[1:]
    Warden(int(control), float(grace_seconds)).run(argv, int(memory_bytes))


if __name__ == "__main__":
    main()
