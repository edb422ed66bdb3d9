"""Checks of the repository: it names no machine, and its files are readable and complete."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

# Put together from halves, so that this file does not contain what it looks for.
FOREIGN = tuple(
    "".join(halves)
    for halves in (
        ("/wo", "rk/"),
        ("/ro", "ot/"),
        ("pypi", ".org"),
        ("python", "hosted"),
        ("npm", "js"),
        ("deb", ".debian"),
        ("../sha", "red"),
    )
)


def foreign_words(text: str) -> list[str]:
    return [word for word in FOREIGN if word in text]


def repository_files() -> list[Path]:
    """List every file that is, or is about to be, under version control."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = (REPOSITORY / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def text_of(path: Path) -> str:
    """Return the file's text; nothing for a binary file."""
    content = path.read_bytes()
    return "" if b"\0" in content else content.decode("utf-8", errors="replace")


def test_no_file_names_a_machine_or_a_package_registry() -> None:
    files = repository_files()
    assert files
    found = [
        f"{path.relative_to(REPOSITORY)}: {word}" for path in files for word in foreign_words(text_of(path))
    ]
    assert found == []


@pytest.mark.parametrize("word", FOREIGN)
def test_a_foreign_word_is_found(word: str) -> None:
    assert foreign_words(f"see {word}x") == [word]


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_the_two_commands(command: str) -> None:
    assert command in (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_continuous_integration_runs_the_test_command() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert "make test" in script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)


def test_the_licence_is_apache_2() -> None:
    text = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


LONGEST_FILE = 401
LONGEST_FUNCTION = 40


def _too_long(source: Path) -> Iterator[str]:
    """Name files and functions that are too long; signatures and docstrings do not count."""
    text = source.read_text(encoding="utf-8")
    if (lines := text.count("\n")) >= LONGEST_FILE:
        yield f"{source}: {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        length = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
        if length > LONGEST_FUNCTION:
            yield f"{source}: {node.name} has {length} lines"


def test_no_file_and_no_function_is_too_long_to_be_read_at_once() -> None:
    sources = sorted((REPOSITORY / "src").rglob("*.py"))
    assert sources
    assert [complaint for source in sources for complaint in _too_long(source)] == []


def test_what_is_too_long_is_found(tmp_path: Path) -> None:
    long = tmp_path / "long.py"
    long.write_text("def f():\n    '''why'''\n" + "    pass\n" * 41)
    assert list(_too_long(long)) == [f"{long}: f has 41 lines"]
    long.write_text("# a line\n" * 500)
    assert list(_too_long(long)) == [f"{long}: 500 lines"]


WAITING = frozenset(
    (
        "acquire",
        "communicate",
        "eventually",
        "get_message",
        "join",
        "read_line",
        "result",
        "timeout",
        "wait",
        "wait_for",
    )
)
"""Calls whose last argument, `timeout` or `seconds` is a limit in wall-clock time, in a thread too."""
SHORTEST_PATIENCE = 600


def _too_impatient(source: Path) -> Iterator[str]:
    """Name time limits that a busy machine may reach; up to a second may wait for what must not come."""
    for call in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        named = {getattr(each, "attr", getattr(each, "id", "")) for each in (call.func, *call.args[:-1])}
        if not named & {*WAITING, "run"}:
            continue
        limits = call.args[-1:] if named & WAITING else []
        limits += [keyword.value for keyword in call.keywords if keyword.arg in ("timeout", "seconds")]
        for limit in limits:
            seconds = limit.value if isinstance(limit, ast.Constant) else None
            if isinstance(seconds, int | float) and 1 < seconds < SHORTEST_PATIENCE:
                yield f"{source}:{call.lineno}: {ast.unparse(call)}"


def test_no_test_waits_so_short_that_a_busy_machine_fails_it() -> None:
    sources = sorted((REPOSITORY / "tests").rglob("*.py"))
    assert sources
    assert [complaint for source in sources for complaint in _too_impatient(source)] == []


def test_impatience_is_found(tmp_path: Path) -> None:
    hasty = tmp_path / "hasty.py"
    hasty.write_text(
        "await handle.result(timeout=40)\nprocess.wait(10)\nprocess.wait(0.05)\nflag.wait(600)\n"
        "await to_thread(child.read_line, 30)\neventually(is_there, seconds=60)\n"
    )
    found = {complaint.rpartition(": ")[2] for complaint in _too_impatient(hasty)}
    assert found == {
        "handle.result(timeout=40)",
        "process.wait(10)",
        "to_thread(child.read_line, 30)",
        "eventually(is_there, seconds=60)",
    }
