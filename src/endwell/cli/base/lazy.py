"""A group whose commands are imported when they are used, so that the command line starts fast."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, NamedTuple

import click

from endwell.cli.base.options import EndwellGroup


class CommandPlace(NamedTuple):
    """Where a command is, and its one line of help, known without importing it."""

    target: str
    help: str


class LazyGroup(EndwellGroup):
    """`places` maps names to `module:attribute`; a command whose module is missing is not offered."""

    def __init__(self, *arguments: Any, places: dict[str, CommandPlace], **about: Any) -> None:
        super().__init__(*arguments, **about)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, place in self.places.items() if _is_there(place)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self.places.get(cmd_name)
        if place is None or not _is_there(place):
            return None
        module, _, attribute = place.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.places[name].help) for name in self.list_commands(ctx)])


def _is_there(place: CommandPlace) -> bool:
    return importlib.util.find_spec(place.target.partition(":")[0]) is not None
