"""`endwell signal`: send a task a signal."""

from __future__ import annotations

import click

from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.values import payload_of


@click.command(cls=EndwellCommand)
@click.argument("task_id", metavar="TASK")
@click.argument("name")
@click.argument("value", metavar="[JSON|@FILE|-]", required=False)
@pass_options
def signal(options: Options, task_id: str, name: str, value: str | None) -> None:
    """Send a task a signal by name.

    The signal is kept until the task waits for it.

    \b
      endwell signal 01j8z3k5v7x9a1c3e5g7j9m1p3 payment-received '{"amount": 5}'
    """
    payload = payload_of(value)
    show_answer(
        options,
        lambda node: node.client.signal(task_id, name, payload),
        lambda found: f"sent; the task is {found['task_status']}",
    )
