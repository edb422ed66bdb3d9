"""`endwell migrate` and `endwell restored`: the store itself."""

from __future__ import annotations

from typing import Any

import click

from endwell.app import Node
from endwell.cli.base.commands import EndwellCommand, as_option
from endwell.cli.base.loading import all_namespaces, show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import pairs_text
from endwell.model.names import person_name
from endwell.operate.transfer.importing import mark_restored
from endwell.settings import mask_url
from endwell.store.migrations import all_migrations


@click.command(cls=EndwellCommand)
@pass_options
def migrate(options: Options) -> None:
    """Bring the store's schema up to date.

    Every command does this when it opens a store; safe while others use it. Shows the schema's
    version and the database's own settings.

    \b
      endwell migrate --store sqlite:///hello.db
    """
    show_answer(options, _store_facts, _facts_text, may_be_new=True)


async def _store_facts(node: Node) -> dict[str, Any]:
    url = node.app.url
    dialect = "sqlite" if url.startswith("sqlite:") else "postgres"
    return {
        "store": mask_url(url),
        "schema_version": all_migrations(dialect)[-1].number,
        "database": await node.store.settings(),
    }


def _facts_text(found: dict[str, Any]) -> str:
    database = {f"database.{name}": value for name, value in found["database"].items()}
    return pairs_text({"store": found["store"], "schema_version": found["schema_version"], **database})


@click.command(cls=EndwellCommand)
@as_option
@pass_options
def restored(options: Options, who: str | None) -> None:
    """Record that the store was restored from a backup.

    Run it after every restore, before the workers start. Effects since the backup are not in the record:
    an effect of a present task that has no record counts as unknown from now on, so `reconcile` or a
    person is asked before it is executed. All namespaces unless --namespace names one.

    \b
      endwell restored --as ada
    """

    async def ask_store(node: Node) -> dict[str, Any]:
        namespaces = await all_namespaces(node, options)
        actor = person_name(node.app.owner if who is None else who)
        await mark_restored(node.store, namespaces, node.app.runtime.ids.new, actor=actor)
        return {"namespaces": namespaces}

    show_answer(options, ask_store, lambda found: f"restored: {', '.join(found['namespaces'])}")
