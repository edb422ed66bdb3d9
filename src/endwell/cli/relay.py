"""`endwell relay`: what was sent to the receiver, and how to leave out what it refuses."""

from __future__ import annotations

from typing import Any

import click

from endwell.cli.base.commands import EndwellGroup
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import pairs_text, table_text
from endwell.model.names import person_name
from endwell.operate import relay as operate_relay


@click.group(cls=EndwellGroup)
def relay() -> None:
    """What was sent to the receiver, and how to leave out what it refuses.

    \b
      endwell relay status
      endwell relay skip EVENT --as ada
    """


@relay.command("status")
@pass_options
def show_status(options: Options) -> None:
    """Show where the relay is in the log, what holds it up, and what was left out.

    \b
      endwell relay status
    """
    show_answer(options, lambda node: operate_relay.status(node.store, node.app.namespace), _status_text)


@relay.command("skip")
@click.argument("event_id", metavar="EVENT")
@click.option("--as", "who", required=True, metavar="NAME", help="Who decides so; it is recorded.")
@pass_options
def skip_event(options: Options, event_id: str, who: str) -> None:
    """Leave out the messages of one event that the receiver will never take.

    Acts when the relay next tries, within `relay.pause_seconds`. What was sent cannot be left out.

    \b
      endwell relay skip 01j8z3k5v7x9a1c3e5g7j9m1p3.7 --as ada
    """
    show_answer(
        options,
        lambda node: operate_relay.leave_out(node.make_actor(person_name(who)), event_id),
        _status_text,
    )


def _status_text(found: dict[str, Any]) -> str:
    short = {key: value for key, value in found.items() if key != "skipped"}
    rows = [[item[key] for key in ("event_id", "by", "at")] for item in found["skipped"]]
    return (
        f"{pairs_text(short)}\n\n{table_text(('left out', 'by', 'at'), rows, empty='nothing was left out')}"
    )
