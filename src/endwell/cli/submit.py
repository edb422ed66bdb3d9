"""`endwell submit` and `endwell submit-many`: create tasks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import IO, Any, TypeVar

import click

from endwell.app import Node
from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import write_remark
from endwell.cli.base.values import in_line, numbered_values, open_many, parse_duration, payload_of
from endwell.cli.task import task_text
from endwell.errors import BadInput
from endwell.operate.questions import whole_task
from endwell.policy.submitting import checked_payload

F = TypeVar("F", bound=Callable[..., Any])

CHUNK = 2_000
"""Tasks in one call to the store; a larger file is read in pieces."""
PROGRESS_EVERY = 50_000


def submission_options(function: F) -> F:
    """The options of a submission."""
    for option in (
        click.option("--caused-by", metavar="TASK", help="The task that caused this one."),
        click.option("--channel", default="main", metavar="NAME", help="The task's channel; default: main."),
        click.option(
            "--deadline",
            type=parse_duration,
            metavar="DURATION",
            help="How long the task may take: 90, 90s, 15m, 2h, 3d.",
        ),
        click.option(
            "--delay", type=parse_duration, metavar="DURATION", help="Start no sooner than after this time."
        ),
        click.option("--priority", type=int, default=0, help="-9 to 9; higher runs sooner."),
    ):
        function = option(function)
    return function


@click.command(cls=EndwellCommand)
@click.argument("agent", metavar="AGENT[/KEY]")
@click.argument("payload", required=False, metavar="[JSON|@FILE|-]")
@click.option("--key", help="Idempotency key: the same key and payload is the same task.")
@submission_options
@click.option("--wait", is_flag=True, help="Wait for the end; exit 1 unless the task succeeded.")
@click.option(
    "--timeout", type=parse_duration, metavar="DURATION", help="Wait at most this long, then exit 6."
)
@pass_options
def submit(
    options: Options,
    /,
    agent: str,
    payload: str | None,
    wait: bool,
    timeout: float | None,
    **request: Any,
) -> int:
    """Submit a task.

    \b
      endwell submit clerk '{"id": "42", "items": 5}' --key order-42 --wait
      endwell submit coder/issue-42 @ticket.json --delay 15m --priority 5
    """
    value = payload_of(payload)
    is_waiting = wait or timeout is not None

    async def ask_store(node: Node) -> dict[str, Any]:
        handle = await node.client.submit(agent, value, **request)
        if is_waiting:
            write_remark(f"waiting for task {handle.id}")
            await node.client.wait_ended(handle.id, timeout)
        found = await whole_task(node.store, node.app.namespace, handle.id)
        return {**found, "deduplicated": handle.deduplicated}

    document = show_answer(options, ask_store, task_text, may_be_new=True)
    return 1 if is_waiting and document["status"] != "succeeded" else 0


@click.command("submit-many", cls=EndwellCommand)
@click.argument("agent", metavar="AGENT[/KEY]")
@click.argument("source", metavar="@FILE.jsonl|-")
@submission_options
@pass_options
def submit_many(options: Options, /, agent: str, source: str, **request: Any) -> None:
    """Submit many tasks: one JSON value per line.

    All lines are checked first: if one is bad, the error names it and nothing is stored.

    \b
      endwell submit-many clerk @orders.jsonl
      jq -c '.[]' orders.json | endwell submit-many clerk - --priority -5
    """
    with open_many(source) as file:

        async def ask_store(node: Node) -> dict[str, Any]:
            ids = await _submit_lines(node, agent, file, request)
            return {"submitted": len(ids), "ids": ids}

        show_answer(options, ask_store, _submitted_text, may_be_new=True)


def _submitted_text(found: dict[str, Any]) -> str:
    return f"submitted {found['submitted']} tasks" if found["ids"] else "there was nothing to submit"


async def _submit_lines(node: Node, agent: str, file: IO[bytes], request: dict[str, Any]) -> list[str]:
    spec = await node.client.find_spec(agent)
    for number, value in numbered_values(file):
        try:
            checked_payload(value, spec)
        except BadInput as refusal:
            raise in_line(number, refusal) from refusal
    ids: list[str] = []
    values = (value for _, value in numbered_values(file))
    while chunk := list(islice(values, CHUNK)):
        ids += [handle.id for handle in await node.client.submit_many(agent, chunk, **request)]
        if len(ids) % PROGRESS_EVERY == 0:
            write_remark(f"submitted {len(ids)} so far")
    return ids
