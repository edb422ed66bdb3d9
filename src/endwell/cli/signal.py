"""`endwell signal`: tell a task something by name."""

from __future__ import annotations

import click

from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellCommand, Options, pass_asked
from endwell.cli.base.output import show
from endwell.cli.base.values import payload_of


@click.command(cls=EndwellCommand)
@click.argument("task_id", metavar="TASK")
@click.argument("name")
@click.argument("value", metavar="[JSON|@FILE|-]", required=False)
@pass_asked
def signal(asked: Options, task_id: str, name: str, value: str | None) -> None:
    """Tell a task something by name.

    A task that does not wait for it yet finds it when it does.

    \b
      endwell signal 01j8z3k5v7x9a1c3e5g7j9m1p3 payment-received '{"amount": 5}'
    """
    said = payload_of(value)
    done = with_node(asked, lambda node: node.client.signal(task_id, name, said))
    show(asked, done, lambda found: f"told; the task is {found['task_status']}")
