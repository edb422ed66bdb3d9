"""Child processes, and what the machine knows about this and other processes.

A child gets its own process group, so that it and whatever it starts can be signalled as one, and on
Linux it dies with its parent.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

DEVNULL = subprocess.DEVNULL
PIPE = subprocess.PIPE
Output = int | IO[bytes] | None

STANDSTILL_SECONDS = 10.0
"""How long is waited for a frozen process that is in the middle of a call to the system."""

_PR_SET_PDEATHSIG = 1


def give_way() -> None:
    """For whoever has nothing to do but wait: a process it has just woken may sit on this very processor."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def start(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    cwd: str | Path | None = None,
    stdout: Output = PIPE,
    stderr: Output = None,
) -> Child:
    """Start a process in a group of its own, without standard input.

    With `stdout=PIPE` somebody must read it (`Child.read_line`), or a talkative child blocks. On Linux
    the child is killed when the *thread* that started it ends: start children from a lasting one.
    """
    return Child(
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


class Child:
    """A started process. Signals go to its whole group, and never to a process that has been reaped."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._unread = b""
        self.pid = process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; TimeoutError when it takes longer."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s") from None

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Returns when it stands still: on a busy machine its threads go on for a while after the signal."""
        self._signal(signal.SIGSTOP)
        give_up_at = time.monotonic() + STANDSTILL_SECONDS
        while self.poll() is None and not _stands_still(self.pid) and time.monotonic() < give_up_at:
            time.sleep(0.001)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def read_line(self, timeout: float | None = None) -> str | None:
        """The next line of its output without the line end; None at the end of the output."""
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
        """Give back the pipe to a child whose output is no longer of interest."""
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


def host_name() -> str:
    return socket.gethostname()


def process_id() -> int:
    return os.getpid()


def os_user() -> str:
    """Who runs this process; its numeric id where the system has no name for it."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # Windows; a container with an id of its own
        name = os.environ.get("USER") or os.environ.get("USERNAME")
        return name or (f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown")


def pid_alive(pid: int) -> bool:
    """Whether a process with this id runs on this machine; a zombie does not."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    fields = _stat_fields(pid)
    return not (fields and fields[0] in ("Z", "X"))


def process_mark(pid: int) -> str | None:
    """The namespace of a process's number, and its start in ticks since boot; None where unknown."""
    fields = _stat_fields(pid)
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    return f"{space}.{fields[19]}" if fields and len(fields) > 19 else None


def is_same_process(pid: int, mark: str) -> bool | None:
    """Whether the process that had this number and mark still runs; None if that cannot be known."""
    if not mark:
        return None if pid_alive(pid) else False
    own = process_mark(os.getpid())
    if own is None or own.partition(".")[0] != mark.partition(".")[0]:
        return None  # its number belongs to another container, which may have this machine's name
    return pid_alive(pid) and process_mark(pid) == mark


def has_children() -> bool:
    """Whether this process has children: running, or ended and not waited for yet, or not to be found out."""
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def lock_holder(path: Path, byte: int) -> int | None:
    """The process that holds a POSIX write lock on one byte of a file; None if none does, or it is unknown.

    Read from the kernel's table: to open and close the file would drop the locks that this process has on it.
    """
    for fields in _posix_locks(path) or ():
        if fields[3] == "WRITE" and int(fields[6]) <= byte and (fields[7] == "EOF" or byte <= int(fields[7])):
            return int(fields[4])
    return None


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open, as far as /proc says."""
    try:
        file, numbers = os.stat(path), os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(_is_file(Path(f"/proc/{pid}/fd/{number}"), file) for number in numbers)


def has_lost_locks(pid: int, path: Path) -> bool:
    """Whether a process has a file open on which it holds no POSIX lock; False where /proc does not say."""
    locks = _posix_locks(path)
    if locks is None or not has_open(pid, path):
        return False
    return str(pid) not in {fields[4] for fields in locks}


def _is_file(place: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(place.stat(), file)
    except OSError:
        return False


def _posix_locks(path: Path) -> list[list[str]] | None:
    """The kernel's lines about locks that are held on a file; None where it does not say."""
    try:
        found = os.stat(path)
        table = Path("/proc/locks").read_text()
    except OSError:
        return None
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    lines = (line.split() for line in table.splitlines())
    return [fields for fields in lines if len(fields) == 8 and (fields[1], fields[5]) == ("POSIX", file)]


def cpu_seconds(pid: int) -> float | None:
    """Processor time a process has used so far; None where /proc does not say."""
    fields = _stat_fields(pid)
    if fields is None:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int | None:
    """Memory a process holds now; None where /proc does not say."""
    text = _proc(pid, "statm")
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") if text else None


def limit_memory(more_bytes: int) -> None:
    """Let this process map that much more memory than now; past it, Python raises MemoryError. Linux only."""
    import resource

    mapped = int((_proc(os.getpid(), "statm") or "0").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped + more_bytes
    resource.setrlimit(
        resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most)
    )


def lift_memory_limit() -> None:
    """As much memory again as this process may have."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _stands_still(pid: int) -> bool:
    """Whether no thread of a process runs; taken to be so where /proc does not say."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    states = [fields[0] for thread in threads if (fields := _stat_fields(int(thread)))]
    return all(state in "TtZX" for state in states)


def _stat_fields(pid: int) -> list[str] | None:
    # After the name, which may itself contain blanks and parentheses.
    text = _proc(pid, "stat")
    return text.rpartition(")")[2].split() if text else None


def _proc(pid: int, name: str) -> str | None:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return None


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
