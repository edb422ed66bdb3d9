"""`endwell submit`: ask for work, and wait for it if wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from endwell.app import Node
from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellCommand, Options, pass_asked
from endwell.cli.base.output import say, show
from endwell.cli.base.values import duration, payload_of
from endwell.cli.tasks import task_text
from endwell.operate.questions import whole_task

F = TypeVar("F", bound=Callable[..., Any])


def how(function: F) -> F:
    """The options that say how submitted work is to be done."""
    for option in (
        click.option("--caused-by", metavar="TASK", help="The task on whose account this is asked for."),
        click.option("--channel", default="main", metavar="NAME", help="The channel it belongs to."),
        click.option("--deadline", type=duration, help="How long it may take: 90, 90s, 15m, 2h, 3d."),
        click.option("--delay", type=duration, help="Start no sooner than in this time."),
        click.option("--priority", type=int, default=0, help="-9 to 9; higher runs sooner."),
    ):
        function = option(function)
    return function


@click.command(cls=EndwellCommand)
@click.argument("agent", metavar="AGENT[/KEY]")
@click.argument("payload", required=False, metavar="[JSON|@FILE|-]")
@click.option("--key", help="Idempotency key: the same key and payload is the same task.")
@how
@click.option("--wait", is_flag=True, help="Wait for the end; exit 1 unless it succeeded.")
@click.option("--timeout", type=duration, help="Wait at most so long; exit 6 when it passes.")
@pass_asked
def submit(
    asked: Options,
    /,
    agent: str,
    payload: str | None,
    key: str | None,
    wait: bool,
    timeout: float | None,
    **options: Any,
) -> int:
    """Ask for work.

    \b
      endwell submit clerk '{"id": "42", "items": 5}' --key order-42 --wait
      endwell submit coder/issue-42 @ticket.json --delay 15m --priority 5
    """
    value = payload_of(payload)
    is_waiting = wait or timeout is not None

    async def ask(node: Node) -> dict[str, Any]:
        handle = await node.client.submit(agent, value, key=key, **options)
        if is_waiting:
            say(f"waiting for task {handle.id}")
            await node.client.wait_ended(handle.id, timeout)
        found = await whole_task(node.store, node.app.namespace, handle.id)
        return {**found, "deduplicated": handle.deduplicated}

    document = with_node(asked, ask, may_be_new=True)
    show(asked, document, task_text)
    return 1 if is_waiting and document["status"] != "succeeded" else 0
