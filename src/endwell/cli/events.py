"""`endwell events`: read the log, follow it, and check that nobody touched it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import Any

import click

from endwell.app import Node
from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellGroup, Options, pass_asked
from endwell.cli.base.output import say, show, table, write, write_json
from endwell.cli.tasks import event_line
from endwell.cli.transfer import all_namespaces, export_events, import_events
from endwell.operate.questions import logged_shape
from endwell.operate.verify import verify as operate_verify
from endwell.policy.limits import SECOND

PAGE = 500
FROM_NOW_ON = "now"
HELD_BACK_SECONDS = 5.0
"""How old an event must be that cannot be shown yet before that is worth a line."""


@click.group(cls=EndwellGroup)
def events() -> None:
    """Read the log, and check that nobody touched it.

    \b
      endwell events tail --follow
      endwell events verify
      endwell events export backup.jsonl
    """


@events.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option(
    "--after", default="", metavar="CURSOR", help="Begin after this event's cursor; `now`: only new ones."
)
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only these: task.dlq, task.*")
@pass_asked
def tail(asked: Options, follow: bool, after: str, types: tuple[str, ...]) -> None:
    """The log in the order of commits, one event per line.

    \b
      endwell events tail --type 'task.*' --json
      endwell events tail --follow --after now
    """

    async def ask(node: Node) -> None:
        cursor = await node.store.log_end() if after == FROM_NOW_ON else after
        async for event in _log(node, cursor, follow):
            if not types or any(fnmatchcase(event["type"], pattern) for pattern in types):
                _write_event(asked, event)

    with_node(asked, ask)


async def _log(node: Node, cursor: str, follow: bool) -> AsyncIterator[dict[str, Any]]:
    """A ring says that something may have happened; polling finds what did not ring."""
    rung = asyncio.Event()
    node.bell.subscribe(lambda topics: rung.set())
    said_at: str | None = None
    while True:
        rung.clear()
        page = await node.store.events_after(node.app.namespace, cursor, PAGE)
        for logged in page:
            cursor = logged.cursor
            yield {**logged_shape(logged), "cursor": cursor}
        if not page and said_at != cursor and await _is_held_back(node, cursor):
            said_at = cursor
            say("later events are committed but held back by an open transaction; endwell doctor names it")
        if not page and not follow:
            return
        if not page:
            await node.app.runtime.wait(rung, node.app.settings.worker.poll_seconds)


async def _is_held_back(node: Node, cursor: str) -> bool:
    """Whether events behind a cursor have been committed for some time and cannot be shown yet."""
    at = await node.store.oldest_after(node.app.namespace, cursor)
    return at is not None and await node.store.now() - at > HELD_BACK_SECONDS * SECOND


def _write_event(asked: Options, event: dict[str, Any]) -> None:
    if asked.json:
        write_json(event, is_line=True)
    else:
        write(event_line(event))


@events.command()
@pass_asked
def verify(asked: Options) -> int:
    """Check every task's log: changed, missing, reordered or cut off, and whether its row is what it says.

    All namespaces are checked unless --namespace names one. Exit 1 if anything is wrong.

    \b
      endwell events verify --store sqlite:///hello.db
    """

    async def ask(node: Node) -> dict[str, Any]:
        namespaces = await all_namespaces(node, asked)
        return await operate_verify(node.store, namespaces, lambda count: say(f"checked {count} tasks"))

    answer = with_node(asked, ask)
    show(asked, answer, _verdict_text)
    return 0 if answer["ok"] else 1


def _verdict_text(answer: dict[str, Any]) -> str:
    if answer["ok"]:
        return f"ok: the logs of {answer['checked']} tasks are whole"
    columns = ("task_id", "version", "kind", "about")
    listed = table(columns, [[item[column] for column in columns] for item in answer["problems"]], empty="")
    return f"{listed}\n{answer['found']} problems in the logs of {answer['checked']} tasks"


events.add_command(export_events)
events.add_command(import_events)
