"""Every command has help with an example, and docs/reference.md has every command, option and setting."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from endwell import errors
from endwell.cli.base.commands import SharedOption
from endwell.cli.main import PLACES, cli
from endwell.settings.sections import KEYS
from tests.cli.conftest import Command
from tests.cli.shell import SECONDS, Shell

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from _commands(below, f"{path} {name}")


AS_THEY_STAND = {"endwell demo", "endwell bench"}  # their name is their example
COMMANDS = dict(_commands(cli, "endwell"))


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_help_with_an_example(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    assert path in AS_THEY_STAND or "endwell " in command.help.split("\b")[-1]


@pytest.mark.parametrize(
    "path", [path for path, command in COMMANDS.items() if not isinstance(command, click.Group)]
)
def test_a_command_is_in_the_reference_with_all_its_options(path: str) -> None:
    parts = REFERENCE.split("\n### ")[1:]
    sections = [part for part in parts if part.startswith((f"`{path}`", f"`{path} "))]
    assert len(sections) == 1, f"docs/reference.md needs one section '### `{path} …`'"
    own = [option for option in COMMANDS[path].params if isinstance(option, click.Option)]
    for option in own:
        if not isinstance(option, SharedOption):
            assert f"`{option.opts[0]}" in sections[0], f"{path} {option.opts[0]} is not in the reference"


@pytest.mark.parametrize("path", COMMANDS)
def test_the_values_of_options_have_names_for_people(path: str) -> None:
    """Without `metavar=`, help shows the name of the function that reads the value."""
    ctx = click.Context(COMMANDS[path])
    shown = [option.make_metavar(ctx) for option in COMMANDS[path].params if isinstance(option, click.Option)]
    assert not [name for name in shown if "_" in name and name.isupper()], shown


def test_the_shared_options_are_in_the_reference() -> None:
    for option in cli.params:
        if isinstance(option, SharedOption):
            assert f"`{option.opts[0]}" in REFERENCE


@pytest.mark.parametrize("key", KEYS)
def test_a_setting_is_in_the_reference(key: str) -> None:
    assert f"`{key}`" in REFERENCE


def test_every_class_of_error_is_in_the_reference() -> None:
    def tree(kind: type[errors.EndwellError]) -> Iterator[type[errors.EndwellError]]:
        yield kind
        for below in kind.__subclasses__():
            yield from tree(below)

    for kind in tree(errors.EndwellError):
        if not issubclass(kind, errors.AgentSignal) and kind.__module__ == "endwell.errors":
            assert f"`{kind.code}`" in REFERENCE, kind


def test_the_short_help_is_the_first_line_of_the_long_one() -> None:
    for name, place in PLACES.items():
        command = COMMANDS.get(f"endwell {name}")
        if command is not None and name not in ("demo", "bench"):
            assert (command.help or "").split("\n")[0] == place.help


def test_help_is_asked_for_with_or_without_words(command: Command) -> None:
    assert command("--help").code == 0
    assert command("task", "list", "-h").code == 0
    nothing = command()
    assert nothing.code == 2
    assert "submit-many" in nothing.err


def test_help_imports_no_backend_and_no_drawing(shell: Shell) -> None:
    code = (
        "import sys; from endwell.cli.main import run; run(['--help']);"
        "print([name for name in ('asyncpg', 'rich', 'endwell.cli.submit') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
