"""The repository stands alone: it names no machine, and what it promises at the door is there."""

from __future__ import annotations

import os
import subprocess
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
    """Every file that is, or is about to be, under version control."""
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
    """The file's text; nothing for a file that is not text."""
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
