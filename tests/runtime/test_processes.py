"""Tests of child processes that are killed, frozen and read; and of what /proc says."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from endwell.runtime import child_process, processes
from endwell.runtime.child_process import DEVNULL, ChildProcess

PATIENCE = 600.0
WAIT = "print('ready', flush=True); import signal; signal.pause()"

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own promise, made on Linux only")
Python = Callable[[str], ChildProcess]


@pytest.fixture
def python() -> Iterator[Python]:
    """Start Python code in a child that does not outlive the test."""
    children: list[ChildProcess] = []

    def start(code: str) -> ChildProcess:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        children.append(child_process.start_process([sys.executable, "-c", code], env))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait(PATIENCE)
        child.close()


def test_a_child_can_be_read_line_by_line(python: Python) -> None:
    child = python("print('one'); print(); print('three', end='')")
    assert [child.read_line(PATIENCE) for _ in range(4)] == ["one", "", "three", None]
    assert child.wait(PATIENCE) == 0
    assert child.poll() == 0


def test_reading_stops_waiting_when_its_time_is_up(python: Python) -> None:
    child = python(WAIT)
    assert child.read_line(PATIENCE) == "ready"
    with pytest.raises(TimeoutError):
        child.read_line(0.01)
    with pytest.raises(TimeoutError):
        child.wait(0.01)
    assert child.poll() is None


def test_a_child_leads_its_own_process_group(python: Python) -> None:
    child = python(WAIT)
    assert os.getpgid(child.pid) == child.pid != os.getpgrp()


def test_killing_takes_the_childs_own_children_along(python: Python) -> None:
    child = python(
        "import subprocess, sys;"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
        "print(p.pid, flush=True); p.wait()"
    )
    grandchild = int(child.read_line(PATIENCE) or 0)
    with _watched(grandchild) as ended:
        child.kill()
        assert child.wait(PATIENCE) == -signal.SIGKILL
        assert ended()


def test_terminating_is_a_polite_signal(python: Python) -> None:
    child = python(
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5));"
        "print('ready', flush=True); signal.pause()"
    )
    assert child.read_line(PATIENCE) == "ready"
    child.terminate()
    assert child.wait(PATIENCE) == 5


def test_signalling_a_child_that_has_ended_does_nothing(python: Python) -> None:
    child = python("")
    child.wait(PATIENCE)
    child.kill()
    child.terminate()
    child.freeze()
    child.thaw()


@linux
def test_a_child_can_be_frozen_and_thawed(python: Python) -> None:
    child = python(WAIT)
    child.freeze()
    stopped = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert stopped is not None
    assert processes.pid_alive(child.pid)
    child.thaw()
    assert os.waitid(os.P_PID, child.pid, os.WCONTINUED | os.WNOWAIT) is not None


BUSY_THREADS = """
import threading
for _ in range(4):
    threading.Thread(target=lambda: [sum(range(99)) for _ in iter(int, 1)], daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


@linux
def test_no_thread_of_a_frozen_child_goes_on(python: Python) -> None:
    child = python(BUSY_THREADS)
    assert child.read_line(PATIENCE) == "ready"
    for _ in range(10):
        child.freeze()
        assert set(_states(child.pid)) == {"T"}
        child.thaw()


def _states(pid: int) -> list[str]:
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return [text.rpartition(")")[2].split()[0] for text in texts]


@linux
def test_a_child_dies_with_its_parent(python: Python) -> None:
    parent = python(
        "import sys, signal; from endwell.runtime.child_process import start_process;"
        f"print(start_process([sys.executable, '-c', {WAIT!r}]).pid, flush=True); signal.pause()"
    )
    grandchild = int(parent.read_line(PATIENCE) or 0)
    with _watched(grandchild) as ended:
        os.kill(parent.pid, signal.SIGKILL)
        assert ended()


def test_output_can_go_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        child = child_process.start_process([sys.executable, "-c", "print('kept')"], stdout=out, cwd=tmp_path)
    assert child.wait(PATIENCE) == 0
    assert (tmp_path / "out").read_text() == "kept\n"
    with pytest.raises(ValueError, match="PIPE"):
        child.read_line(0)


def test_a_process_is_alive_until_it_ends_even_before_it_is_reaped() -> None:
    child = child_process.start_process([sys.executable, "-c", ""], stdout=DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.pid_alive(os.getpid())
    assert not processes.pid_alive(child.pid)  # a zombie
    child.wait(PATIENCE)
    assert not processes.pid_alive(child.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**40, 2**80])
def test_an_impossible_id_is_no_process(pid: int) -> None:
    assert not processes.pid_alive(pid)
    assert processes.cpu_seconds(pid) is None
    assert processes.rss_bytes(pid) is None


@linux
def test_the_machine_says_what_a_process_uses() -> None:
    used = processes.cpu_seconds(os.getpid())
    held = processes.rss_bytes(os.getpid())
    assert used is not None
    assert used > 0
    assert held is not None
    assert held > 1_000_000


def test_the_process_knows_its_place() -> None:
    assert processes.process_id() == os.getpid()
    assert processes.host_name()
    assert processes.os_user()


def test_a_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.delenv("USERNAME", raising=False)
    assert processes.os_user() == "uid-3999999999"


class _watched:  # noqa: N801 - reads as a word
    """Report the end of a process that is not our child."""

    def __init__(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)

    def __enter__(self) -> Callable[[], bool]:
        return lambda: bool(select.select([self._handle], [], [], PATIENCE)[0])

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
