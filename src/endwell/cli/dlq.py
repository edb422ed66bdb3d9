"""`endwell dlq`: what failed for good and awaits a verdict: replay it, repaired if need be, or abandon it."""

from __future__ import annotations

import sys
from typing import Any

import click

from endwell.app import Node
from endwell.cli.asked import Asked, Group, pass_asked
from endwell.cli.loading import with_node
from endwell.cli.output import block, listed, pairs, say, show
from endwell.cli.tasks import error_text
from endwell.cli.values import file_content
from endwell.errors import Refused, UsageError
from endwell.model import content
from endwell.operate import dead_letters
from endwell.operate.repair import Edit, edit_of
from endwell.operate.shapes import task_shape


@click.group(cls=Group)
def dlq() -> None:
    """Dead letters: failed tasks that await a verdict.

    \b
      endwell dlq list
      endwell dlq replay TASK --set items[0].price=5
    """


@dlq.command("list")
@click.option("--fingerprint", help="Only failures of this kind.")
@click.option("--all", "everything", is_flag=True, help="Replayed and abandoned ones too.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="At most so many; 50 unless said.")
@click.option("--cursor", help="Go on where a page ended: its `next`.")
@pass_asked
def list_letters(asked: Asked, /, **wanted: Any) -> None:
    """The newest dead letters first. Failures of one kind have one fingerprint.

    \b
      endwell dlq list --fingerprint 0a1b2c3d4e5f
    """
    page = with_node(asked, lambda node: dead_letters.page(node.store, node.app.namespace, **wanted))
    show(asked, page, _page_text)


@dlq.command("show")
@click.argument("task_id", metavar="TASK")
@pass_asked
def show_letter(asked: Asked, task_id: str) -> None:
    """One dead letter: what was asked, and what went wrong.

    \b
      endwell dlq show 01j8z3k5v7x9a1c3e5g7j9m1p3
    """
    found = with_node(asked, lambda node: dead_letters.whole(node.store, node.app.namespace, task_id))
    show(asked, found, _letter_text)


@dlq.command()
@click.argument("task_ids", nargs=-1, metavar="[TASK]...")
@click.option("--fingerprint", help="All open ones of this kind.")
@click.option("--all", "everything", is_flag=True, help="All open ones.")
@click.option("--yes", is_flag=True, help="Do not ask before replaying many.")
@click.option("--set", "edits", multiple=True, metavar="PATH=VALUE", help="Repair the payload: a.b[0]=5")
@click.option("--payload", "file", metavar="FILE", help="Another payload, from a JSON file.")
@pass_asked
def replay(
    asked: Asked,
    task_ids: tuple[str, ...],
    fingerprint: str | None,
    everything: bool,
    yes: bool,
    edits: tuple[str, ...],
    file: str | None,
) -> int:
    """Ask for the work of dead letters again, each as a new task linked by replay_of.

    A repaired payload is checked before anything is stored. A dead letter can be replayed once.

    \b
      endwell dlq replay 01j8z3k5v7x9a1c3e5g7j9m1p3 --set customer.age=42
      endwell dlq replay --fingerprint 0a1b2c3d4e5f --yes
    """
    _refuse_unclear_choice(task_ids, fingerprint, everything)
    replacement = _replacement(file, tuple(map(edit_of, edits)))

    async def ask(node: Node) -> dict[str, Any]:
        letters = dead_letters.DeadLetters(node.store, node.client.actions, node.app.namespace)
        if len(task_ids) == 1:
            return task_shape(await letters.replay(task_ids[0], replacement))
        chosen = list(task_ids) or await letters.open_ids(fingerprint)
        if not task_ids:
            _ask_before(len(chosen), yes)
        return await letters.replay_many(chosen, replacement)

    document = with_node(asked, ask)
    show(asked, document, _replayed_text)
    return Refused.exit_code if document.get("refused") else 0


def _refuse_unclear_choice(task_ids: tuple[str, ...], fingerprint: str | None, everything: bool) -> None:
    if sum((bool(task_ids), fingerprint is not None, everything)) != 1:
        raise UsageError("name dead letters by id, or give --fingerprint F, or --all", field="task_ids")


def _replacement(file: str | None, edits: tuple[Edit, ...]) -> dead_letters.Replacement:
    if file is None:
        return dead_letters.Replacement(edits=edits)
    return dead_letters.Replacement(payload=content.decode(file_content(file)), is_given=True, edits=edits)


def _ask_before(count: int, yes: bool) -> None:
    if yes or not count:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"this would replay {count} dead letters", hint="add --yes", field="yes")
    if not click.confirm(f"Replay {count} dead letters?", err=True):
        raise click.Abort


@dlq.command()
@click.argument("task_id", metavar="TASK")
@click.option("--note", help="Why; kept in the log.")
@pass_asked
def abandon(asked: Asked, task_id: str, note: str | None) -> None:
    """Close a dead letter for good.

    \b
      endwell dlq abandon 01j8z3k5v7x9a1c3e5g7j9m1p3 --note 'customer left'
    """

    async def ask(node: Node) -> dict[str, Any]:
        letters = dead_letters.DeadLetters(node.store, node.client.actions, node.app.namespace)
        return task_shape(await letters.abandon(task_id, note))

    show(asked, with_node(asked, ask), lambda found: f"dead letter {found['id']} is abandoned")


def _page_text(page: dict[str, Any]) -> str:
    columns = ("task_id", "agent", "reason", "fingerprint", "retry_count", "failed_at", "status")
    rows = [[item[key] for key in columns] for item in page["items"]]
    return listed(columns, rows, page["next"], empty="no dead letters")


def _letter_text(found: dict[str, Any]) -> str:
    short = {key: value for key, value in found.items() if key not in ("payload", "error")}
    parts = [pairs(short), f"payload\n{block(found['payload'])}"]
    return "\n\n".join([*parts, error_text(found["error"])] if found["error"] else parts)


def _replayed_text(document: dict[str, Any]) -> str:
    for refusal in document.get("refused", ()):
        say(f"not replayed: {refusal['message']} ({refusal['code']})")
    items = document.get("items", [document])
    lines = [f"replayed {item['replay_of']} as {item['id']}" for item in items]
    return "\n".join(lines) or "nothing was replayed"
