"""What the operating system knows about this process and others: numbers, locks, memory, processor time.

Functions that read /proc return None, or say so, on a system that has none.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path


def give_way() -> None:
    """Let other processes have this processor; a process that was just woken may wait for it."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def host_name() -> str:
    return socket.gethostname()


def process_id() -> int:
    return os.getpid()


def os_user() -> str:
    """Name the user who runs this process; by number where the system has no name."""
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
    """Return the namespace of a process's number and its start in ticks since boot; None where unknown."""
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
    """Whether this process has children, running or not yet waited for; True where that is unknown."""
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def lock_holder(path: Path, byte: int) -> int | None:
    """Return the process that holds a POSIX write lock on one byte of a file; None if none does, or unknown.

    Read from the kernel's table: opening and closing the file would drop the locks of this process on it.
    """
    for fields in _posix_locks(path) or ():
        if fields[3] == "WRITE" and int(fields[6]) <= byte and (fields[7] == "EOF" or byte <= int(fields[7])):
            return int(fields[4])
    return None


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open; False where /proc does not say."""
    try:
        file, numbers = os.stat(path), os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(_is_file(Path(f"/proc/{pid}/fd/{number}"), file) for number in numbers)


def processes_without_locks(path: Path, beside: Path) -> list[int]:
    """The processes that have a file open, and one beside it (deleted or not), but hold no lock on it.

    Not those that were forked from a holder: locks are not inherited, but open files are.
    """
    locks = _posix_locks(path)
    if locks is None:
        return []
    holders = {int(fields[4]) for fields in locks}
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    found = (pid for pid in sorted(pids) if pid not in holders and has_open(pid, path))
    return [pid for pid in found if _has_named(pid, beside) and holders.isdisjoint(_ancestors_of(pid))]


def _ancestors_of(pid: int) -> Iterator[int]:
    while fields := _stat_fields(pid):
        pid = int(fields[1])
        yield pid


def _has_named(pid: int, path: Path) -> bool:
    """Whether a process has a file open under this name, which may be deleted by now."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return any(link.removesuffix(" (deleted)") == str(path) for link in links)


def _is_file(place: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(place.stat(), file)
    except OSError:
        return False


def _posix_locks(path: Path) -> list[list[str]] | None:
    """Read the kernel's lines about locks on a file; None where it has none."""
    try:
        found = os.stat(path)
        table = Path("/proc/locks").read_text()
    except OSError:
        return None
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    lines = (line.split() for line in table.splitlines())
    return [fields for fields in lines if len(fields) == 8 and (fields[1], fields[5]) == ("POSIX", file)]


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time that a process has used; None where /proc does not say."""
    fields = _stat_fields(pid)
    if fields is None:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int | None:
    """Return the memory that a process holds; None where /proc does not say."""
    text = _read_proc(pid, "statm")
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") if text else None


def limit_memory(more_bytes: int) -> None:
    """Limit the further memory that this process may map; past it, Python raises MemoryError. Linux only."""
    import resource

    mapped = int((_read_proc(os.getpid(), "statm") or "0").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped + more_bytes
    resource.setrlimit(
        resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most)
    )


def lift_memory_limit() -> None:
    """Lift the limit of `limit_memory`."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def stands_still(pid: int) -> bool:
    """Whether no thread of a process runs; True where /proc does not say."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    states = [fields[0] for thread in threads if (fields := _stat_fields(int(thread)))]
    return all(state in "TtZX" for state in states)


def _stat_fields(pid: int) -> list[str] | None:
    # After the name, which may itself contain blanks and parentheses.
    text = _read_proc(pid, "stat")
    return text.rpartition(")")[2].split() if text else None


def _read_proc(pid: int, name: str) -> str | None:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return None
