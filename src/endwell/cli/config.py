"""`endwell config show` and `endwell migrate`: what is set, and what the store is."""

from __future__ import annotations

from typing import Any

import click

from endwell.app import Node
from endwell.cli.base.loading import settings_of, with_node
from endwell.cli.base.options import EndwellCommand, EndwellGroup, Options, pass_asked
from endwell.cli.base.output import pairs, show, table
from endwell.errors import BadSetting
from endwell.settings import Settings, as_queued, check, describe, masked
from endwell.store.migrations import migrations


@click.group(cls=EndwellGroup)
def config() -> None:
    """Show the settings.

    \b
      endwell config show
    """


@config.command("show")
@pass_asked
def show_settings(asked: Options) -> int:
    """Every setting, its value and where it came from. Exit 1 if they contradict each other.

    \b
      ENDWELL__WORKER__LEASE_SECONDS=60 endwell config show
    """
    settings = settings_of(asked)
    items = [described._asdict() for described in describe(settings)]
    problem = _problem(settings)
    show(asked, {"items": items, "next": None, "problem": problem}, _settings_text)
    return 1 if problem else 0


def _problem(settings: Settings) -> dict[str, Any] | None:
    try:
        check(as_queued(settings))
    except BadSetting as problem:
        return problem.as_dict()
    return None


def _settings_text(answer: dict[str, Any]) -> str:
    rows = [(item["key"], item["value"], item["source"]) for item in answer["items"]]
    text = table(("key", "value", "source"), rows, empty="")
    return f"{text}\n\nproblem: {answer['problem']['message']}" if answer["problem"] else text


@click.command(cls=EndwellCommand)
@pass_asked
def migrate(asked: Options) -> None:
    """Bring the store's schema up to date.

    Every command does this when it opens a store; safe while others use it. Shows the schema's
    version and the database's own settings.

    \b
      endwell migrate --store sqlite:///hello.db
    """
    answer = with_node(asked, _store_facts, may_be_new=True)
    show(asked, answer, _facts_text)


def _facts_text(found: dict[str, Any]) -> str:
    database = {f"database.{name}": value for name, value in found["database"].items()}
    return pairs({"store": found["store"], "schema_version": found["schema_version"], **database})


async def _store_facts(node: Node) -> dict[str, Any]:
    url = node.app.url
    dialect = "sqlite" if url.startswith("sqlite:") else "postgres"
    return {
        "store": masked(url),
        "schema_version": migrations(dialect)[-1].number,
        "database": await node.store.settings(),
    }
