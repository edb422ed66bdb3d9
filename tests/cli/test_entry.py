"""The command as a process: all of its output arrives, and Ctrl-C at any moment exits with 130."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.shell import SECONDS, Shell

BIG = "x" * 900_000
SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_long_json_output_arrives_whole_at_a_slow_non_blocking_reader(
    shell: Shell, store: str, unbuffered: str
) -> None:
    submitted = shell.run("submit", "clerk", "-", "--store", store, "--json", stdin=json.dumps({"id": BIG}))
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    received: list[bytes] = []
    with os.fdopen(read_end, "rb") as reader:
        command = [sys.executable, "-m", "endwell", "task", "show", submitted.document["id"], "--json"]
        environment = {**shell.environment, "PYTHONUNBUFFERED": unbuffered}
        with subprocess.Popen([*command, "--store", store], stdout=write_end, env=environment) as process:
            os.close(write_end)
            thread = threading.Thread(target=lambda: received.append(reader.read()))
            thread.start()
            assert process.wait(SECONDS) == 0
            thread.join(SECONDS)
    assert json.loads(received[0])["payload"] == {"id": BIG}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", ["task list", "task show {task} --json", "events export -"])
def test_output_that_cannot_be_written_is_an_error_without_a_traceback(
    shell: Shell, store: str, words: str
) -> None:
    task = shell.run("submit", "clerk", "-", "--store", store, "--json", stdin=json.dumps({"id": BIG}))
    said = shell_line(shell, f"{words.format(task=task.document['id'])} --store {store} >/dev/full")
    assert said.returncode == 2
    assert "the output cannot be written: No space left on device" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_commands_work_with_closed_standard_streams(shell: Shell, store: str, closed: str) -> None:
    said = shell_line(shell, f"task list --store {store} {closed}")
    assert (said.returncode, said.stderr) == (0, "")
    assert shell_line(shell, f"task show missing --store {store} {closed}").returncode == 3
    assert shell_line(shell, f"events export - --store {store} {closed}").returncode == 0


def shell_line(shell: Shell, words: str) -> subprocess.CompletedProcess[str]:
    """A command as a shell runs it, with redirections."""
    return subprocess.run(
        ["sh", "-c", f"{sys.executable} -m endwell {words}"],
        cwd=shell.directory,
        env=shell.environment,
        text=True,
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )


WAIT = "import signal, sys\nsys.stdout.write('importing\\n')\nsys.stdout.flush()\nsignal.pause()\n"
"""A module that never finishes its import, as on a very slow disk."""
WAIT_IN_A_CLASS = f"""
class Waiter:
    def __set_name__(self, owner, name):
        {"; ".join(WAIT.splitlines())}
class Owner:
    waiter = Waiter()
"""
"""The same in a method whose exceptions Python 3.11 turns into RuntimeError."""


@pytest.mark.parametrize(
    ("module", "source", "arguments"),
    [
        ("click.py", WAIT, ["task", "list"]),
        ("click.py", WAIT_IN_A_CLASS, ["task", "list"]),
        ("slow.py", WAIT, ["worker", "--app", "slow:app"]),
        ("slow.py", WAIT_IN_A_CLASS, ["worker", "--app", "slow:app"]),
    ],
)
def test_ctrl_c_while_modules_are_imported_exits_with_130(
    tmp_path: Path, module: str, source: str, arguments: list[str]
) -> None:
    (tmp_path / module).write_text(source)
    with subprocess.Popen(
        [sys.executable, "-m", "endwell", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SOURCE}"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert said.endswith("interrupted\n")
    assert "Traceback" not in said


def test_the_package_imports_next_to_nothing_before_the_entry_can_answer_ctrl_c() -> None:
    source = "import sys; old = set(sys.modules); import endwell.__main__; print(*set(sys.modules) - old)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", source],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    imported = {name for name in done.stdout.split() if not name.startswith("importlib.")}
    assert imported <= {"__future__", "endwell", "endwell.__main__", "importlib", "warnings"}
