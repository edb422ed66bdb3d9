"""`endwell submit-many`: every line is checked before the first task is stored."""

from __future__ import annotations

from itertools import islice
from typing import IO, Any

import click

from endwell.app import Node
from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellCommand, Options, pass_asked
from endwell.cli.base.output import say, show
from endwell.cli.base.values import in_line, many_opened, numbered_values
from endwell.cli.submit import how
from endwell.errors import BadInput
from endwell.policy.submitting import checked_payload

CHUNK = 2_000
"""So many tasks are handed to the store at once; a larger file is read in pieces."""
REMARK_EVERY = 50_000


@click.command("submit-many", cls=EndwellCommand)
@click.argument("agent", metavar="AGENT[/KEY]")
@click.argument("source", metavar="@FILE.jsonl|-")
@how
@pass_asked
def submit_many(asked: Options, /, agent: str, source: str, **options: Any) -> None:
    """Ask for much work: one JSON value per line.

    Everything is checked first: if one line is bad, it is named and nothing is stored.

    \b
      endwell submit-many clerk @orders.jsonl
      jq -c '.[]' orders.json | endwell submit-many clerk - --priority -5
    """
    with many_opened(source) as file:
        ids = with_node(asked, lambda node: _submitted(node, agent, file, options), may_be_new=True)
    show(
        asked,
        {"submitted": len(ids), "ids": ids},
        lambda done: f"submitted {done['submitted']} tasks" if ids else "there was nothing to submit",
    )


async def _submitted(node: Node, agent: str, file: IO[bytes], options: dict[str, Any]) -> list[str]:
    spec = await node.client.spec(agent)
    for number, value in numbered_values(file):
        try:
            checked_payload(value, spec)
        except BadInput as refusal:
            raise in_line(number, refusal) from refusal
    ids: list[str] = []
    values = (value for _, value in numbered_values(file))
    while chunk := list(islice(values, CHUNK)):
        ids += [handle.id for handle in await node.client.submit_many(agent, chunk, **options)]
        if len(ids) % REMARK_EVERY == 0:
            say(f"submitted {len(ids)} so far")
    return ids
