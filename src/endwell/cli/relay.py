"""`endwell relay`: how far the outside was told, and a way past what it will never take."""

from __future__ import annotations

from typing import Any

import click

from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellGroup, Options, pass_asked
from endwell.cli.base.output import pairs, show, table
from endwell.model.names import person_name
from endwell.operate import relay as operate_relay


@click.group(cls=EndwellGroup)
def relay() -> None:
    """How far the outside was told, and a way past what it will never take.

    \b
      endwell relay status
      endwell relay skip EVENT --as ada
    """


@relay.command("status")
@pass_asked
def show_status(asked: Options) -> None:
    """Where the relay is in the log, what holds it up, and what was left out.

    \b
      endwell relay status
    """
    found = with_node(asked, lambda node: operate_relay.status(node.store, node.app.namespace))
    show(asked, found, _status_text)


@relay.command("skip")
@click.argument("event_id", metavar="EVENT")
@click.option("--as", "who", required=True, metavar="NAME", help="Who says so; it stays written down.")
@pass_asked
def skip_event(asked: Options, event_id: str, who: str) -> None:
    """Leave out the messages of one event, because its receiver will never take them.

    Acts when the relay next tries, within `relay.pause_seconds`. What was told already cannot be left out.

    \b
      endwell relay skip 01j8z3k5v7x9a1c3e5g7j9m1p3.7 --as ada
    """
    found = with_node(asked, lambda node: operate_relay.skip(node.actor(person_name(who)), event_id))
    show(asked, found, _status_text)


def _status_text(found: dict[str, Any]) -> str:
    short = {key: value for key, value in found.items() if key != "skipped"}
    rows = [[item[key] for key in ("event_id", "by", "at")] for item in found["skipped"]]
    return f"{pairs(short)}\n\n{table(('left out', 'by', 'at'), rows, empty='nothing was left out')}"
