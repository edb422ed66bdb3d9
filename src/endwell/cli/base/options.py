"""What is said on the command line apart from the command itself: which store, which app, how to answer.

These options may stand before or after the command. Their values meet in one `Options`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click


@dataclass(kw_only=True)
class Options:
    """The shared options of one invocation."""

    store: str | None = None
    namespace: str | None = None
    app: str | None = None
    json: bool = False
    log_format: str = "text"
    verbose: int = 0
    debug: bool = False


pass_asked = click.make_pass_decorator(Options, ensure=True)


def _note(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Only what was said counts: an option before the command survives its absence after it."""
    asked = ctx.ensure_object(Options)
    if value:
        setattr(asked, parameter.name, value)


def _option(*names: str, **about: Any) -> Callable[[], SharedOption]:
    return lambda: SharedOption(names, expose_value=False, callback=_note, **about)


class SharedOption(click.Option):
    """An option that every command takes; help lists it apart from the command's own."""


_SHARED = (
    _option("--store", metavar="URL", help="sqlite:///FILE or postgresql://…"),
    _option("--namespace", metavar="NAME", help="Which tasks are meant; `default` unless said."),
    _option("--app", metavar="MODULE:NAME", help="Where the Endwell object is; app:app unless said."),
    _option("--json", is_flag=True, default=None, help="Answer with one JSON document on stdout."),
    _option("--log-format", type=click.Choice(["json", "text"]), help="How stderr is written."),
    _option("--verbose", "-v", count=True, help="Say more on stderr; -vv says everything."),
    _option("--debug", is_flag=True, default=None, help="Show the traceback of an error."),
)


class EndwellCommand(click.Command):
    """A command that takes the shared options."""

    def __init__(self, *arguments: Any, **about: Any) -> None:
        super().__init__(*arguments, **about)
        self.params.extend(make() for make in _SHARED)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Set up the log as it was asked for, then run."""
        from endwell.cli.base.logs import configure

        configure(ctx.ensure_object(Options))
        return super().invoke(ctx)


class EndwellGroup(click.Group):
    """A group of commands that takes the shared options."""

    command_class = EndwellCommand

    def __init__(self, *arguments: Any, **about: Any) -> None:
        super().__init__(*arguments, **about)
        self.params.extend(make() for make in _SHARED)

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
