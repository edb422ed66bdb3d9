"""`endwell dlq`: what failed for good and awaits a verdict: replay it, repaired if need be, or abandon it."""

from __future__ import annotations

import sys
from typing import Any

import click

from endwell.app import Node
from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellGroup, Options, pass_asked
from endwell.cli.base.output import block, listed, pairs, say, show, table
from endwell.cli.base.values import file_content
from endwell.cli.dlq_entries import Replaying, replayed_id, unreadables
from endwell.cli.tasks import error_text
from endwell.errors import Refused, UsageError
from endwell.model import content
from endwell.operate import dead_letters
from endwell.operate.questions import task_shape
from endwell.operate.repair import Edit, edit_of
from endwell.streams.entries import is_entry_id


@click.group(cls=EndwellGroup)
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
def list_letters(asked: Options, /, **wanted: Any) -> None:
    """The newest dead letters first. Failures of one kind have one fingerprint.

    Where Redis carries the turns, entries that nobody could read follow: they are on no task's account.

    \b
      endwell dlq list --fingerprint 0a1b2c3d4e5f
    """

    async def ask(node: Node) -> dict[str, Any]:
        page = await dead_letters.page(node.store, node.app.namespace, **wanted)
        async with unreadables(node) as entries:
            if entries is not None and wanted["cursor"] is None:
                page |= await entries.page(wanted["limit"], wanted["fingerprint"])
        return page

    show(asked, with_node(asked, ask), _page_text)


@dlq.command("show")
@click.argument("task_id", metavar="TASK|ENTRY")
@pass_asked
def show_letter(asked: Options, task_id: str) -> None:
    """One dead letter, or unreadable entry: what was asked, and what went wrong.

    \b
      endwell dlq show 01j8z3k5v7x9a1c3e5g7j9m1p3
    """

    async def ask(node: Node) -> dict[str, Any]:
        async with unreadables(node) as entries:
            if entries is not None and is_entry_id(task_id):
                return await entries.details(task_id)
        return await dead_letters.whole(node.store, node.app.namespace, task_id)

    show(asked, with_node(asked, ask), _letter_text)


@dlq.command()
@click.argument("task_ids", nargs=-1, metavar="[TASK|ENTRY]...")
@click.option("--fingerprint", help="All open ones of this kind.")
@click.option("--all", "everything", is_flag=True, help="All open ones.")
@click.option("--yes", is_flag=True, help="Do not ask before replaying many.")
@click.option("--set", "edits", multiple=True, metavar="PATH=VALUE", help="Repair the payload: a.b[0]=5")
@click.option("--payload", "file", metavar="FILE", help="Another payload, from a JSON file.")
@click.option("--agent", help="Who is to do what an unreadable entry asked for, if it does not say.")
@pass_asked
def replay(
    asked: Options,
    task_ids: tuple[str, ...],
    fingerprint: str | None,
    everything: bool,
    yes: bool,
    edits: tuple[str, ...],
    file: str | None,
    agent: str | None,
) -> int:
    """Ask for the work of dead letters again, each as a new task linked by replay_of.

    A repaired payload is checked before anything is stored. A dead letter can be replayed once. What an
    unreadable entry of a stream asked for becomes a task for the first time.

    \b
      endwell dlq replay 01j8z3k5v7x9a1c3e5g7j9m1p3 --set customer.age=42
      endwell dlq replay --fingerprint 0a1b2c3d4e5f --yes
    """
    _refuse_unclear_choice(task_ids, fingerprint, everything)
    replacement = _replacement(file, tuple(map(edit_of, edits)))

    async def ask(node: Node) -> dict[str, Any]:
        async with unreadables(node) as entries:
            return await Replaying(node, entries, replacement, agent).chosen(
                task_ids, fingerprint, lambda count: _ask_before(count, yes)
            )

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
@click.argument("task_id", metavar="TASK|ENTRY")
@click.option("--note", help="Why; kept in the log.")
@pass_asked
def abandon(asked: Options, task_id: str, note: str | None) -> None:
    """Close a dead letter for good, or throw an unreadable entry away.

    \b
      endwell dlq abandon 01j8z3k5v7x9a1c3e5g7j9m1p3 --note 'customer left'
    """

    async def ask(node: Node) -> dict[str, Any]:
        async with unreadables(node) as entries:
            if entries is not None and is_entry_id(task_id):
                if note is not None:
                    raise UsageError("an entry has no log that could keep a note", field="note")
                return await entries.abandon(task_id)
        letters = dead_letters.DeadLetters(node.client.actions)
        return task_shape(await letters.abandon(task_id, note))

    show(asked, with_node(asked, ask), lambda found: f"dead letter {found['id']} is abandoned")


def _page_text(page: dict[str, Any]) -> str:
    columns = ("task_id", "agent", "reason", "fingerprint", "retry_count", "failed_at", "status")
    rows = [[item[key] for key in columns] for item in page["items"]]
    text = listed(columns, rows, page["next"], empty="no dead letters")
    if page.get("entries"):
        columns = ("id", "stream", "tool_name", "reason", "error", "fingerprint", "failed_at")
        rows = [[item[key] for key in columns] for item in page["entries"]]
        text = f"{text}\n\nentries that nobody could read\n{table(columns, rows, empty='')}"
    return f"{text}\n\n{page['entries_error']}" if page.get("entries_error") else text


def _letter_text(found: dict[str, Any]) -> str:
    short = {key: value for key, value in found.items() if key not in ("payload", "error")}
    parts = [pairs(short), f"payload\n{block(found['payload'])}"]
    error = found["error"]
    if isinstance(error, str):
        return "\n\n".join([*parts, f"error\n{error}"])
    return "\n\n".join([*parts, error_text(error)] if error else parts)


def _replayed_text(document: dict[str, Any]) -> str:
    for refusal in document.get("refused", ()):
        say(f"not replayed: {refusal['message']} ({refusal['code']})")
    items = document.get("items", [document])
    lines = [f"replayed {replayed_id(item)} as {item['id']}" for item in items]
    return "\n".join(lines) or "nothing was replayed"
