"""`endwell events`: read the log, verify it, export and import the record."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import IO, Any, TypeVar

import click
import msgspec

from endwell.app import Node
from endwell.cli.base.commands import EndwellGroup
from endwell.cli.base.loading import all_namespaces, show_answer, with_node
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import show, table_text, write, write_json, write_remark
from endwell.cli.base.values import keep_stdin, open_file
from endwell.cli.task import event_line
from endwell.errors import StoreError, UsageError
from endwell.model.moments import SECOND
from endwell.operate.questions import logged_shape
from endwell.operate.record.verify import verify as operate_verify
from endwell.operate.transfer.export_format import split_lines
from endwell.operate.transfer.exporting import export
from endwell.operate.transfer.importing import import_lines

T = TypeVar("T")
PAGE = 500
FROM_NOW_ON = "now"
HELD_BACK_SECONDS = 5.0
"""Age of a committed event that cannot be shown yet from which that is worth a remark."""


@click.group(cls=EndwellGroup)
def events() -> None:
    """Read the log, verify it, export and import the record.

    \b
      endwell events tail --follow
      endwell events verify
      endwell events export backup.jsonl
    """


@events.command()
@click.option("--follow", "-f", is_flag=True, help="Continue with new events until interrupted.")
@click.option(
    "--after", default="", metavar="CURSOR", help="Begin after this cursor; `now`: only new events."
)
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only these: task.dlq, task.*")
@pass_options
def tail(options: Options, follow: bool, after: str, types: tuple[str, ...]) -> None:
    """Print the log in the order of commits, one event per line.

    \b
      endwell events tail --type 'task.*' --json
      endwell events tail --follow --after now
    """

    async def ask_store(node: Node) -> None:
        cursor = await node.store.log_end() if after == FROM_NOW_ON else after
        async for event in _read_log(node, cursor, follow):
            if types and not any(fnmatchcase(event["type"], pattern) for pattern in types):
                continue
            if options.json:
                write_json(event, is_line=True)
            else:
                write(event_line(event))

    with_node(options, ask_store)


async def _read_log(node: Node, cursor: str, follow: bool) -> AsyncIterator[dict[str, Any]]:
    """Events after the cursor. A ring shortens the wait for new ones; polling makes up for lost rings."""
    rung = asyncio.Event()
    node.bell.subscribe(lambda topics: rung.set())
    ask = partial(_ask_again, node) if follow else _ask_once
    warned_at: str | None = None
    while True:
        rung.clear()
        page = await ask(partial(node.store.events_after, node.app.namespace, cursor, PAGE))
        for logged in page:
            cursor = logged.cursor
            yield {**logged_shape(logged), "cursor": cursor}
        if not page and warned_at != cursor and await ask(partial(_is_held_back, node, cursor)):
            warned_at = cursor
            write_remark(
                "later events are committed but held back by an open transaction; endwell doctor names it"
            )
        if not page and not follow:
            return
        if not page:
            await node.app.runtime.wait(rung, node.app.settings.worker.poll_seconds)


async def _ask_once(question: Callable[[], Awaitable[T]]) -> T:
    return await question()


async def _ask_again(node: Node, question: Callable[[], Awaitable[T]]) -> T:
    """Ask until the store answers: a follower outlives an outage."""
    while True:
        try:
            return await question()
        except StoreError as error:
            write_remark(f"{error.message}; waiting for the store")
            await node.app.runtime.sleep(node.app.settings.worker.poll_seconds)


async def _is_held_back(node: Node, cursor: str) -> bool:
    """Whether events after a cursor were committed some time ago and cannot be shown yet."""
    at = await node.store.oldest_after(node.app.namespace, cursor)
    return at is not None and await node.store.now() - at > HELD_BACK_SECONDS * SECOND


@events.command()
@pass_options
def verify(options: Options) -> int:
    """Find changed, missing, reordered or cut-off events, and rows that differ from their log.

    All namespaces are checked unless --namespace names one. Exit 1 if anything is wrong.

    \b
      endwell events verify --store sqlite:///hello.db
    """

    async def ask_store(node: Node) -> dict[str, Any]:
        namespaces = await all_namespaces(node, options)
        return await operate_verify(
            node.store, namespaces, lambda count: write_remark(f"checked {count} tasks")
        )

    return 0 if show_answer(options, ask_store, _verdict_text)["ok"] else 1


def _verdict_text(answer: dict[str, Any]) -> str:
    if answer["ok"]:
        return f"ok: the logs of {answer['checked']} tasks are whole"
    columns = ("task_id", "version", "kind", "about")
    listed = table_text(
        columns, [[item[column] for column in columns] for item in answer["problems"]], empty=""
    )
    return f"{listed}\n{answer['found']} problems in the logs of {answer['checked']} tasks"


@events.command("export")
@click.argument("file", default="-", metavar="[FILE|-]")
@pass_options
def export_events(options: Options, file: str) -> None:
    """Write the whole record as JSON lines: cards, events, and pending messages.

    All namespaces unless --namespace names one. Without a file, or with -, to stdout. Safe while others
    use the store: the export is a snapshot.

    \b
      endwell events export backup.jsonl
    """
    with ExitStack() as stack:
        target = sys.stdout.buffer if file == "-" else stack.enter_context(_new_file(file))

        async def ask_store(node: Node) -> Any:
            counts = await export(node.store, await all_namespaces(node, options), target.write)
            return msgspec.to_builtins(counts)

        counts = with_node(options, ask_store)
        target.flush()
    if file == "-":
        write_remark(_counts_text(counts))
    else:
        show(options, counts, _counts_text)


@contextmanager
def _new_file(name: str) -> Iterator[IO[bytes]]:
    """A file that only its owner may read. No file is overwritten, and no half record is left."""
    try:
        opened = open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: SIM115
    except OSError as error:
        hint = "name a file that does not exist yet"
        raise UsageError(f"{name}: {error.strerror}", hint=hint, field="file") from error
    try:
        with opened:
            yield opened
    except BaseException:
        os.unlink(name)
        raise


@events.command("import")
@click.argument("file", metavar="FILE|-")
@pass_options
def import_events(options: Options, file: str) -> None:
    """Make an export the record of an empty store.

    Every line is checked first: its form, its names, the hash chains, that events can be folded and name
    exactly the cards of the file. A bad line is reported by its number, and nothing is changed. A store
    that holds exactly this record already is left as it is (exit 0).

    \b
      endwell events import backup.jsonl --store sqlite:///new.db
    """
    with keep_stdin() if file == "-" else open_file(file) as source:

        def read() -> Iterator[bytes]:
            source.seek(0)
            return split_lines(source)

        async def ask_store(node: Node) -> dict[str, Any]:
            return await import_lines(node.store, read, node.app.runtime.ids.new)

        show_answer(options, ask_store, _imported_text, may_be_new=True)


def _counts_text(answer: dict[str, Any]) -> str:
    return ", ".join(f"{value} {name}" for name, value in answer.items() if isinstance(value, int))


def _imported_text(answer: dict[str, Any]) -> str:
    counts = _counts_text({name: value for name, value in answer.items() if name != "already_there"})
    return f"already there, nothing was changed: {counts}" if answer["already_there"] else counts
