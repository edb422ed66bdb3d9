"""`endwell config`: the settings, and where each comes from."""

from __future__ import annotations

from typing import Any

import click

from endwell.cli.base.commands import EndwellGroup
from endwell.cli.base.loading import settings_of
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import show, table_text
from endwell.errors import BadSetting
from endwell.settings import Settings, as_queued, check, describe


@click.group(cls=EndwellGroup)
def config() -> None:
    """Show the settings.

    \b
      endwell config show
    """


@config.command("show")
@pass_options
def show_settings(options: Options) -> int:
    """Show every setting with its value and source. Exit 1 if settings contradict each other.

    \b
      ENDWELL__WORKER__LEASE_SECONDS=60 endwell config show
    """
    settings = settings_of(options)
    problem = _find_problem(settings)
    items = [described._asdict() for described in describe(settings)]
    show(options, {"items": items, "next": None, "problem": problem}, _settings_text)
    return 1 if problem else 0


def _find_problem(settings: Settings) -> dict[str, Any] | None:
    try:
        check(as_queued(settings))
    except BadSetting as problem:
        return problem.as_dict()
    return None


def _settings_text(answer: dict[str, Any]) -> str:
    rows = [(item["key"], item["value"], item["source"]) for item in answer["items"]]
    text = table_text(("key", "value", "source"), rows, empty="")
    return f"{text}\n\nproblem: {answer['problem']['message']}" if answer["problem"] else text
