"""Output: one document on stdout, remarks on stderr, no control characters, no secrets."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from endwell.cli.base import failures, logs, output
from endwell.cli.base.options import Options
from endwell.cli.main import cli
from tests.cli.conftest import Command, Stock
from tests.cli.shell import SECONDS, Shell


def test_control_characters_are_escaped_in_text(command: Command, stock: Stock, store: str) -> None:
    for words in (("task", "show", stock.failed), ("dlq", "show", stock.failed), ("events", "tail")):
        answer = command(*words, "--store", store)
        assert answer.code == 0
        assert "\x1b" not in answer.out
        assert "[31m" in answer.out


def test_control_characters_of_a_payload_are_escaped_in_text(command: Command, store: str) -> None:
    task = command(
        "submit", "clerk", '{"id": "a\\u202eb\\u009bc\\u001b"}', "--store", store, "--json"
    ).document
    assert task["payload"] == {"id": "a\u202eb\x9bc\x1b"}
    text = command("task", "show", task["id"], "--store", store).out
    assert not {"\u202e", "\x9b", "\x1b"} & set(text)


def test_an_error_without_json_is_text_on_stderr_alone(command: Command, store: str) -> None:
    answer = command("submit", "missing", "1", "--store", store)
    assert answer.out == ""
    assert "unknown_agent" in answer.err
    assert "hint: known agents: " in answer.err
    assert "clerk" in answer.err


def test_an_unexpected_error_is_internal_and_shows_its_traceback_only_when_asked(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise KeyError("oh")

    monkeypatch.setattr(cli.get_command(None, "migrate"), "callback", explode)  # type: ignore[arg-type]
    answer = command("migrate", "--json")
    assert (answer.code, answer.error["code"]) == (70, "internal")
    assert "Traceback" not in answer.err
    assert "Traceback" in command("migrate", "--json", "--debug").err


def test_an_interruption_exits_with_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.get_command(None, "migrate"), "callback", interrupt)  # type: ignore[arg-type]
    assert command("migrate").code == 130


def test_a_reader_that_closes_the_pipe_early_is_no_error(shell: Shell, stock: Stock) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "endwell", "events", "tail", "-f"],
        cwd=shell.directory,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert shell.run("submit", "clerk", '{"id": "1"}').code == 0
    assert child.wait(SECONDS) == 0
    assert "Error" not in child.stderr.read()
    child.stderr.close()


def test_secrets_are_masked_anywhere_in_a_text() -> None:
    text = "no answer from postgresql://bob:hunter2@db/x?password=p2 and redis://:p3@r, sorry: a@b"
    masked = output.without_secrets(text)
    assert not any(secret in masked for secret in ("hunter2", "p2", "p3"))
    assert masked.startswith("no answer from postgresql://bob:***@db/x")
    assert masked.endswith("sorry: a@b")
    for odd in ("//t0ken@db/x", "https:/hooks.test/t0ken", "http:hooks.test/t0ken", "redis://t0ken@db"):
        assert "t0ken" not in output.without_secrets(f"no answer from ({odd}) yet"), odd
    approval = "01m7t5s89je8abjnk253gfeqf4.s.1:(1.1)approve@074ceb30bd8d30ae#1"
    for plain in (approval, "ann@example.com", "a//b", "note: http: nothing", "key=order-42", "12:30"):
        assert output.without_secrets(f"about {plain}, sorry") == f"about {plain}, sorry"


def test_a_table_is_drawn_whole_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = output.table_text(("id", "what"), [("x" * 26, "[bold]y\x1b[31m")], empty="")
    assert "x" * 26 in text
    assert r"[bold]y\x1b[31m" in text
    assert "\x1b" not in text


def test_json_counts_only_before_a_double_dash() -> None:
    assert failures.ErrorStyle.from_arguments(["submit", "--json"]).json
    assert not failures.ErrorStyle.from_arguments(["submit", "--", "--json"]).json


@pytest.mark.parametrize("style", ["json", "text"])
def test_the_log_has_ids_and_no_secrets(style: str) -> None:
    formatter = logs.JsonFormatter() if style == "json" else logs.TextFormatter()
    about = {
        "name": "endwell.worker",
        "levelname": "WARNING",
        "msg": "lost %s\x1b",
        "args": ("postgresql://bob:hunter2@db/x",),
        "task_id": "t1",
        "attempt_id": "a1",
    }
    line = formatter.format(logging.makeLogRecord(about))
    assert "t1" in line
    assert "a1" in line
    assert "hunter2" not in line
    assert "\x1b" not in line
    if style == "json":
        assert json.loads(line)["attempt_id"] == "a1"


@pytest.mark.parametrize(
    ("verbose", "variable", "level"),
    [(0, None, "WARNING"), (1, None, "INFO"), (2, "error", "DEBUG"), (0, "error", "ERROR")],
)
def test_the_log_level_is_set_by_option_or_variable(
    command: Command, monkeypatch: pytest.MonkeyPatch, verbose: int, variable: str | None, level: str
) -> None:
    if variable:
        monkeypatch.setenv(logs.LEVEL_VARIABLE, variable)
    logs.configure_logs(Options(verbose=verbose))
    assert logging.getLevelName(logging.getLogger().level) == level


def test_a_level_that_does_not_exist_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "loud")
    assert command("config", "show", "--json").code == 2
