"""Every example and command of the documentation runs as a reader would run it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from endwell.cli.main import run
from endwell.runtime.child_process import ChildProcess, start_process

ROOT = Path(__file__).parent.parent
ENDWELL = [sys.executable, "-m", "endwell"]
# the example itself says nothing about how long it takes: make its worker's death noticed quickly
QUICK = {
    "ENDWELL__WORKER__LEASE_SECONDS": "1.2",
    "ENDWELL__WORKER__HEARTBEAT_SECONDS": "0.2",
    "ENDWELL__PMO__WATCHDOG_INTERVAL_SECONDS": "0.1",
    "ENDWELL__WORKER__POLL_SECONDS": "0.1",
    "ENDWELL__WORKER__QUIET_POLL_SECONDS": "0.1",
}


def python_blocks(page: str) -> dict[str, str]:
    """The Python examples of a page, by the file name in their first line."""
    blocks = re.findall(r"```python\n(# (\S+\.py)[^\n]*\n.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return {name: text for text, name in blocks}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **QUICK}


def ran(arguments: list[str], directory: Path, expect: int = 0) -> str:
    done = subprocess.run(
        arguments, cwd=directory, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def in_store(store: Path, query: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


# the reader's own code: a bank that writes each payment down, takes its time, and can be asked about it
BANK = """\
import time
from pathlib import Path

BOOK = Path("bank.txt")


def pay(total: int, idempotency_key: str) -> str:
    with BOOK.open("a") as book:
        book.write(f"{idempotency_key} {total}\\n")
    time.sleep(0.2)
    return f"paid {total}"


def find_payment(key: str, total: int) -> str | None:
    paid = BOOK.exists() and f"{key} {total}" in BOOK.read_text().splitlines()
    return f"paid {total}" if paid else None
"""


def write_example(directory: Path) -> None:
    (directory / "hello.py").write_text(python_blocks("README.md")["hello.py"])
    (directory / "bank.py").write_text(BANK)


def started_example(directory: Path) -> ChildProcess:
    return start_process([sys.executable, "hello.py"], env=environment(), cwd=directory)


def killed(child: ChildProcess) -> None:
    child.kill()
    child.wait(timeout=600)
    child.close()


def status_of_task(store: Path) -> object:
    """None while there is no task, or no table."""
    try:
        return next(iter(in_store(store, "SELECT status FROM tasks")), (None,))[0]
    except (apsw.SQLError, apsw.CantOpenError, apsw.BusyError):
        return None


def kill_it_at_work(directory: Path) -> None:
    """Kill the process while its worker holds the task; a late try is repeated."""
    store = directory / "hello.db"
    for _ in range(20):
        for left in (*directory.glob("hello.db*"), *directory.glob("bank.txt")):
            left.unlink()
        child = started_example(directory)
        while status_of_task(store) in (None, "queued"):
            if child.poll() is not None:
                assert status_of_task(store) is not None, "it ended without a task"
                break  # sooner than anybody could look
        killed(child)
        if status_of_task(store) == "running":
            return
    raise AssertionError("no kill came while the task was running")


@pytest.mark.covers("S1.1", "S4.12", "S4.13", "S4.34")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_readme_example_survives_three_kills_and_pays_once(tmp_path: Path, seed: int) -> None:
    write_example(tmp_path)
    kill_it_at_work(tmp_path)
    moments = random.Random(seed)
    for _ in range(2):
        child = started_example(tmp_path)
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            child.wait(timeout=moments.uniform(0.15, 0.6))
        killed(child)

    assert ran([sys.executable, "hello.py"], tmp_path) == "paid 15\n"
    assert (tmp_path / "bank.txt").read_text() == "pay:42 15\n"
    assert in_store(tmp_path / "hello.db", "SELECT status, idempotency_key FROM tasks") == [
        ("succeeded", "order-42")
    ]
    assert in_store(tmp_path / "hello.db", "SELECT count(*) FROM events WHERE type = 'task.succeeded'") == [
        (1,)
    ]


def test_the_readme_commands_show_the_task(tmp_path: Path) -> None:
    write_example(tmp_path)
    ran([sys.executable, "hello.py"], tmp_path)
    commands = re.findall(
        r"^    endwell (.+?)(?:\s{2,}#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert len(commands) == 2

    listed = json.loads(ran([*ENDWELL, "task", "list", "--store", "sqlite:///hello.db", "--json"], tmp_path))
    task_id = listed["items"][0]["id"]
    for command in commands:
        words = shlex.split(command.replace("TASK", task_id))
        assert "succeeded" in ran([*ENDWELL, *words], tmp_path)


@pytest.mark.parametrize(
    ("name", "printed"),
    [("guide_first.py", "bug\n"), ("guide_failures.py", "agent_gave_up only https is fetched\n")],
)
def test_the_guide_examples_print_what_they_promise(tmp_path: Path, name: str, printed: str) -> None:
    (tmp_path / name).write_text(python_blocks("docs/guide.md")[name])
    assert ran([sys.executable, name], tmp_path) == printed


def test_the_example_of_recorded_steps_prints_what_was_asked(tmp_path: Path) -> None:
    (tmp_path / "review.py").write_text(python_blocks("docs/turns.md")["review.py"])
    assert "'cons': 'WHAT IS BAD?', 'pros': 'WHAT IS GOOD?'" in ran([sys.executable, "review.py"], tmp_path)
    assert "succeeded" in ran([*ENDWELL, "task", "list", "--store", "sqlite:///review.db"], tmp_path)


def test_a_program_is_an_agent_as_the_documentation_shows(tmp_path: Path) -> None:
    for name, text in python_blocks("docs/programs.md").items():
        (tmp_path / name).write_text(text)
    assert ran([sys.executable, "programs_app.py"], tmp_path) == "{'letters': 15, 'words': 3}\n"
    assert ran([sys.executable, "programs_isolated.py"], tmp_path) == "10 frames\nagent_timeout\n"


def test_every_command_in_the_documentation_exists(capsys: pytest.CaptureFixture[str]) -> None:
    pages = ["README.md", "docs/guide.md", "docs/turns.md", "docs/operations.md", "CONTRIBUTING.md"]
    text = "\n".join((ROOT / page).read_text() for page in pages)
    shown = {tuple(words.split()) for words in re.findall(r"`endwell ((?:[a-z-]+ ?)+)", text)}
    assert shown
    for words in sorted(shown):
        named = words[:2] if words[0] in GROUPS else words[:1]
        assert run([*named, "--help"]) == 0, named
    assert "Usage: endwell" in capsys.readouterr().out


def test_the_settings_that_the_documentation_shows_are_settings(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "endwell.toml").write_text(block)
        shown = json.loads(ran([*ENDWELL, "config", "show", "--json"], tmp_path))
        said = {item["key"]: item["value"] for item in shown["items"] if "endwell.toml" in item["source"]}
        assert said["relay.secret"] == "***"
        assert said["relay.kind"] == "webhook"


GROUPS = {"task", "dlq", "events", "config", "effect", "tool", "approval", "inbox"}
