"""`endwell dlq`: dead letters of tasks, and unreadable entries of a task stream beside them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import click

from endwell.app import Node
from endwell.cli.base.commands import EndwellGroup, paged_options
from endwell.cli.base.loading import show_answer
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import block, page_text, pairs_text, table_text, write_remark
from endwell.cli.base.values import file_content
from endwell.cli.task import error_text
from endwell.errors import Refused, UsageError
from endwell.model import content
from endwell.model.task import Task
from endwell.operate import dead_letters
from endwell.operate.dead_letters import DeadLetters, Replacement
from endwell.operate.questions import task_shape
from endwell.operate.repair import edit_of
from endwell.operate.unreadable_entries import KEY, UnreadableEntries
from endwell.streams.dead_letter_stream import DeadLetterStream
from endwell.streams.entries import is_entry_id
from endwell.streams.protocol import Names

MOST_AT_ONCE = 1000
"""Unreadable entries of one kind that one command replays."""
_LETTERS = page_text(
    ("task_id", "agent", "reason", "fingerprint", "retry_count", "failed_at", "status"),
    empty="no dead letters",
)
_ENTRY_COLUMNS = ("id", "stream", "tool_name", "reason", "error", "fingerprint", "failed_at")


@click.group(cls=EndwellGroup)
def dlq() -> None:
    """Dead letters: failed tasks to replay or abandon.

    \b
      endwell dlq list
      endwell dlq replay TASK --set items[0].price=5
    """


@dlq.command("list")
@click.option("--fingerprint", help="Only failures of this kind.")
@click.option("--all", "everything", is_flag=True, help="Also replayed and abandoned ones.")
@paged_options
@pass_options
def list_letters(options: Options, /, **wanted: Any) -> None:
    """List dead letters, newest first. Failures of one kind have one fingerprint.

    Where Redis carries the turns, unreadable entries of its stream follow; they belong to no task.

    \b
      endwell dlq list --fingerprint 0a1b2c3d4e5f
    """

    async def ask_store(node: Node) -> dict[str, Any]:
        page = await dead_letters.page(node.store, node.app.namespace, **wanted)
        async with _unreadable_entries(node) as entries:
            if entries is not None and wanted["cursor"] is None:
                page |= await entries.page(wanted["limit"], wanted["fingerprint"])
        return page

    show_answer(options, ask_store, _page_text)


@dlq.command("show")
@click.argument("task_id", metavar="TASK|ENTRY")
@pass_options
def show_letter(options: Options, task_id: str) -> None:
    """Show one dead letter or unreadable entry, with its payload and its error.

    \b
      endwell dlq show 01j8z3k5v7x9a1c3e5g7j9m1p3
    """

    async def ask_store(node: Node) -> dict[str, Any]:
        async with _unreadable_entries(node) as entries:
            if entries is not None and is_entry_id(task_id):
                return await entries.read_entry(task_id)
        return await dead_letters.read_letter(node.store, node.app.namespace, task_id)

    show_answer(options, ask_store, _letter_text)


@dlq.command()
@click.argument("task_ids", nargs=-1, metavar="[TASK|ENTRY]...")
@click.option("--fingerprint", help="All open ones of this kind.")
@click.option("--all", "everything", is_flag=True, help="All open ones.")
@click.option("--yes", is_flag=True, help="Do not ask before many are replayed.")
@click.option("--set", "edits", multiple=True, metavar="PATH=VALUE", help="Repair the payload: a.b[0]=5")
@click.option("--payload", "file", metavar="FILE", help="Another payload, from a JSON file.")
@click.option("--agent", help="The agent for an unreadable entry that names none.")
@pass_options
def replay(
    options: Options,
    /,
    task_ids: tuple[str, ...],
    fingerprint: str | None,
    everything: bool,
    yes: bool,
    edits: tuple[str, ...],
    file: str | None,
    agent: str | None,
) -> int:
    """Replay dead letters, each as a new task linked by replay_of.

    A repaired payload is checked before anything is stored. A dead letter can be replayed once. An
    unreadable entry becomes a task for the first time.

    \b
      endwell dlq replay 01j8z3k5v7x9a1c3e5g7j9m1p3 --set customer.age=42
      endwell dlq replay --fingerprint 0a1b2c3d4e5f --yes
    """
    if sum((bool(task_ids), fingerprint is not None, everything)) != 1:
        raise UsageError("name dead letters by id, or give --fingerprint F, or --all", field="task_ids")
    given = {} if file is None else {"payload": content.decode(file_content(file)), "is_given": True}
    replacement = Replacement(edits=tuple(map(edit_of, edits)), **given)

    async def ask_store(node: Node) -> dict[str, Any]:
        async with _unreadable_entries(node) as entries:
            replays = _Replays(DeadLetters(node.client.actions), entries, replacement, agent)
            if len(task_ids) == 1:
                return task_shape(await replays.replay(task_ids[0]))
            wanted = list(task_ids)
            if not task_ids:
                wanted = await replays.find_open(fingerprint)
                _ask_before(len(wanted), is_agreed=yes)
            return await dead_letters.replay_many(wanted, replays.replay)

    document = show_answer(options, ask_store, _replayed_text)
    return Refused.exit_code if document.get("refused") else 0


class _Replays(NamedTuple):
    """What one command replays, and how."""

    letters: DeadLetters
    entries: UnreadableEntries | None
    replacement: Replacement
    agent: str | None

    async def find_open(self, fingerprint: str | None) -> list[str]:
        found = await self.letters.open_ids(fingerprint)
        if self.entries is not None and fingerprint is not None:
            page = await self.entries.page(MOST_AT_ONCE, fingerprint)
            found += [entry["id"] for entry in page["entries"]]
        return found

    async def replay(self, task_id: str) -> Task:
        if self.entries is not None and is_entry_id(task_id):
            return await self.entries.replay(task_id, self.replacement, self.agent)
        if self.agent is not None:
            raise UsageError("the dead letter of a task goes to that task's agent", field="agent")
        return await self.letters.replay(task_id, self.replacement)


def _ask_before(count: int, *, is_agreed: bool) -> None:
    if is_agreed or not count:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"this would replay {count} dead letters", hint="add --yes", field="yes")
    if not click.confirm(f"Replay {count} dead letters?", err=True):
        raise click.Abort


@dlq.command()
@click.argument("task_id", metavar="TASK|ENTRY")
@click.option("--note", help="Why; kept in the log.")
@pass_options
def abandon(options: Options, task_id: str, note: str | None) -> None:
    """Close a dead letter for good, or delete an unreadable entry.

    \b
      endwell dlq abandon 01j8z3k5v7x9a1c3e5g7j9m1p3 --note 'customer left'
    """

    async def ask_store(node: Node) -> dict[str, Any]:
        async with _unreadable_entries(node) as entries:
            if entries is not None and is_entry_id(task_id):
                if note is not None:
                    raise UsageError("an unreadable entry has no log to keep a note in", field="note")
                return await entries.abandon(task_id)
        return task_shape(await DeadLetters(node.client.actions).abandon(task_id, note))

    show_answer(options, ask_store, lambda found: f"dead letter {found['id']} is abandoned")


@contextlib.asynccontextmanager
async def _unreadable_entries(node: Node) -> AsyncIterator[UnreadableEntries | None]:
    """The unreadable entries of this installation; None if no stream carries its turns."""
    app = node.app
    if app.settings.queue.kind != "redis":
        yield None
        return

    async def submit(agent: str, payload: Any, key: str) -> Task:
        return await (await node.client.submit(agent, payload, key=key)).task()

    redis = app.open_redis()
    stream = DeadLetterStream(redis, Names.for_namespace(app.settings.redis.prefix, app.namespace))
    try:
        yield UnreadableEntries(stream, node.store, app.namespace, submit)
    finally:
        await redis.close()


def _page_text(page: dict[str, Any]) -> str:
    text = _LETTERS(page)
    if page.get("entries"):
        rows = [[item[key] for key in _ENTRY_COLUMNS] for item in page["entries"]]
        text = f"{text}\n\nunreadable entries\n{table_text(_ENTRY_COLUMNS, rows, empty='')}"
    return f"{text}\n\n{page['entries_error']}" if page.get("entries_error") else text


def _letter_text(found: dict[str, Any]) -> str:
    short = {key: value for key, value in found.items() if key not in ("payload", "error")}
    parts = [pairs_text(short), f"payload\n{block(found['payload'])}"]
    error = found["error"]
    if error:
        parts.append(f"error\n{error}" if isinstance(error, str) else error_text(error))
    return "\n\n".join(parts)


def _replayed_text(document: dict[str, Any]) -> str:
    for refusal in document.get("refused", ()):
        write_remark(f"not replayed: {refusal['message']} ({refusal['code']})")
    items = document.get("items", [document])
    lines = [f"replayed {_replayed_id(item)} as {item['id']}" for item in items]
    return "\n".join(lines) or "nothing was replayed"


def _replayed_id(task: dict[str, Any]) -> str:
    """The id of the dead letter, or of the entry, which is in the new task's key."""
    return str(task["replay_of"] or task["idempotency_key"].removeprefix(KEY))
