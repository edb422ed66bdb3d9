"""The classes of commands, which all take the shared options, and options that several commands take.

A shared option may stand before or after the command. The values meet in one `Options`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from endwell.cli.base.options import Options

F = TypeVar("F", bound=Callable[..., Any])


def _keep_value(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep only given values, so that an option before the command survives its absence after it."""
    options = ctx.ensure_object(Options)
    if value:
        setattr(options, parameter.name, value)


class SharedOption(click.Option):
    """An option that every command takes; help lists it apart from the command's own."""


def _shared_options() -> list[click.Parameter]:
    about: dict[tuple[str, ...], dict[str, Any]] = {
        ("--store",): {"metavar": "URL", "help": "sqlite:///FILE or postgresql://…"},
        ("--namespace",): {"metavar": "NAME", "help": "The tasks of this namespace; default: `default`."},
        ("--app",): {"metavar": "MODULE:NAME", "help": "Where the Endwell object is; default: app:app."},
        ("--json",): {"is_flag": True, "default": None, "help": "Answer with a JSON document on stdout."},
        ("--log-format",): {"type": click.Choice(["json", "text"]), "help": "Form of the log on stderr."},
        ("--verbose", "-v"): {"count": True, "help": "Log more on stderr; -vv logs everything."},
        ("--debug",): {"is_flag": True, "default": None, "help": "Show the traceback of an error."},
    }
    return [
        SharedOption(names, expose_value=False, callback=_keep_value, **rest) for names, rest in about.items()
    ]


class EndwellCommand(click.Command):
    """A command that takes the shared options."""

    def __init__(self, *arguments: Any, **about: Any) -> None:
        super().__init__(*arguments, **about)
        self.params.extend(_shared_options())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Configure the log, then run."""
        from endwell.cli.base.logs import configure_logs

        configure_logs(ctx.ensure_object(Options))
        return super().invoke(ctx)


class EndwellGroup(click.Group):
    """A group of commands that takes the shared options."""

    command_class = EndwellCommand

    def __init__(self, *arguments: Any, **about: Any) -> None:
        super().__init__(*arguments, **about)
        self.params.extend(_shared_options())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """The command's own options first, the shared ones below."""
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for parameter in (each for each in command.get_params(ctx) if isinstance(each, click.Option)):
        record = parameter.get_help_record(ctx)
        if record is not None:
            (shared if isinstance(parameter, SharedOption) else own).append(record)
    for title, records in (("Options", own), ("Options of every command", shared)):
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


class CommandPlace(NamedTuple):
    """Where a command is, and its one line of help, known without importing it."""

    target: str
    help: str


class LazyGroup(EndwellGroup):
    """Imports a command when it is used, so that the command line starts fast."""

    def __init__(self, *arguments: Any, places: dict[str, CommandPlace], **about: Any) -> None:
        super().__init__(*arguments, **about)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._places:
            return None
        module, _, attribute = self._places[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.help) for name, place in self._places.items()])


_LIMIT = click.IntRange(1, 1000)
limit_option = click.option("--limit", type=_LIMIT, default=50, help="Items of a page; default 50.")
task_option = click.option("--task", "task_id", metavar="TASK", help="Only those of this task.")
as_option = click.option("--as", "who", metavar="NAME", help="In this person's name; default: your user.")


def paged_options(function: F) -> F:
    """The options of a list that comes in pages."""
    return limit_option(click.option("--cursor", help="The `next` of the previous page.")(function))
