"""A store that cannot be used: exit 5, a clear reason, and never a password."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import apsw
import pytest

from tests.cli.conftest import Command, Stock
from tests.cli.shell import Shell

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE = 1


def _bound_by_permissions() -> None:
    """Let file permissions bind root, too."""
    if os.geteuid() == 0 and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.mark.parametrize(
    "words", ["task list", "why x", "events verify", "events tail", "events export -", "metrics", "dlq list"]
)
def test_a_question_to_a_missing_store_fails_and_creates_none(
    command: Command, tmp_path: Path, words: str
) -> None:
    """A new, empty store would not be the intended one."""
    answer = command(*words.split(), "--store", f"sqlite:///{tmp_path}/mistyped.db", "--json")
    assert (answer.code, answer.error["code"]) == (5, "store_missing")
    assert not list(tmp_path.glob("mistyped*"))


def test_a_store_in_a_missing_directory_is_unreachable(command: Command, tmp_path: Path) -> None:
    answer = command("task", "list", "--store", f"sqlite:///{tmp_path}/none/store.db", "--json")
    assert (answer.code, answer.error["code"]) == (5, "store_unreachable")
    assert not (tmp_path / "none").exists()


def test_a_file_that_is_not_a_database_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database at all, but long enough to look like one" * 99)
    answer = command("task", "list", "--store", "sqlite:///notes.txt", "--json")
    assert (answer.code, answer.error["code"]) == (5, "store_corrupt")
    assert (tmp_path / "notes.txt").read_text().startswith("not a database")


def test_a_store_of_a_newer_release_is_not_touched(command: Command, store: str, tmp_path: Path) -> None:
    with apsw.Connection(str(tmp_path / "store.db")) as connection:
        connection.execute("PRAGMA user_version = 999").fetchall()
    answer = command("submit", "clerk", '{"id": "1"}', "--store", store, "--json")
    assert (answer.code, answer.error["code"]) == (5, "schema_too_new")


@pytest.mark.parametrize("spoiled", ["[]", "5"])
@pytest.mark.parametrize("words", ["why TASK", "task show TASK", "task list"])
def test_a_task_with_an_unreadable_error_is_reported(
    command: Command, store: str, tmp_path: Path, words: str, spoiled: str
) -> None:
    asked = command("submit", "clerk", '{"id": "1"}', "--store", store, "--json")
    with apsw.Connection(str(tmp_path / "store.db")) as connection:
        connection.execute("UPDATE tasks SET error = ?", (spoiled,))
    question = words.replace("TASK", asked.document["id"]).split()
    answer = command(*question, "--store", store, "--json")
    assert (answer.code, answer.error["code"]) == (5, "store_unreadable")


def test_a_read_only_store_is_refused_with_the_reason(shell: Shell, stock: Stock) -> None:
    os.chmod(shell.directory / "store.db", 0o400)
    os.chmod(shell.directory, 0o500)
    try:
        answer = shell.run("submit", "clerk", '{"id": "1"}', "--json", preexec=_bound_by_permissions)
    finally:
        os.chmod(shell.directory, 0o700)
        os.chmod(shell.directory / "store.db", 0o600)
    assert answer.code == 5
    assert answer.error["code"] in ("store_read_only", "store_unreachable")
    assert len(shell.run("task", "list", "--json").document["items"]) == 2


@pytest.mark.parametrize("words", [("task", "list"), ("pmo",), ("migrate",)])
def test_an_unreachable_server_is_named_without_its_password(
    command: Command, words: tuple[str, ...]
) -> None:
    url = "postgresql://bob:hunter2@127.0.0.1:1/nowhere"
    answer = command(*words, "--store", url, "--json")
    assert answer.code == 5
    assert "hunter2" not in answer.out + answer.err


def test_a_store_of_an_unknown_kind_is_named_without_its_password(command: Command) -> None:
    answer = command("task", "list", "--store", "mysql://bob:hunter2@db/x", "--json", "--debug")
    assert answer.code == 2
    assert "mysql://bob:***@db/x" in answer.error["message"]
    assert "hunter2" not in answer.out + answer.err


def test_migrating_shows_the_schema_and_the_databases_settings(command: Command, tmp_path: Path) -> None:
    done = command("migrate", "--store", "sqlite:///new.db", "--json").document
    assert done["store"] == "sqlite:///new.db"
    assert done["schema_version"] >= 1
    assert done["database"]["journal_mode"] == "wal"
    assert "database.synchronous" in command("migrate", "--store", "sqlite:///new.db").out
    assert (tmp_path / "new.db").stat().st_mode & 0o777 == 0o600
