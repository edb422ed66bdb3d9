"""A new user's first minutes: make a project, run it, test it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from endwell.cli.init import FILES
from tests.cli.conftest import Command
from tests.cli.shell import SECONDS, Shell


def test_a_new_project_runs_and_its_tests_pass(shell: Shell, tmp_path: Path) -> None:
    made = shell.run("init", "hello", "--json")
    assert (made.code, made.document) == (0, {"directory": "hello", "files": list(FILES)})
    shell.directory = tmp_path / "hello"
    with shell.serving("up"):
        greeted = shell.run("submit", "greeter", '{"name": "Ada"}', "--wait", "--json").document
        assert greeted["result"] == "Hello, Ada!"
        assert shell.run("doctor").code == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=shell.directory,
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert stat.S_IMODE(os.stat(shell.directory / "app.py").st_mode) == 0o600


def test_nothing_is_ever_overwritten(command: Command, tmp_path: Path) -> None:
    (tmp_path / "endwell.toml").write_text("mine")
    answer = command("init", str(tmp_path), "--json")
    assert (answer.code, answer.error["code"]) == (4, "file_exists")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["endwell.toml"]
    assert (tmp_path / "endwell.toml").read_text() == "mine"


def test_an_unwritable_directory_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = command("init", str(tmp_path / "file" / "below"), "--json")
    assert (answer.code, answer.error["code"]) == (2, "usage")
