"""`endwell events export` and `import`: the record as JSON lines, and back."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import click
import msgspec

from endwell.app import Node
from endwell.cli.base.loading import with_node
from endwell.cli.base.options import EndwellCommand, Options, pass_asked
from endwell.cli.base.output import say, show
from endwell.errors import UsageError
from endwell.model.names import person_name
from endwell.operate.transfer.export_format import End, split_lines
from endwell.operate.transfer.exporting import export
from endwell.operate.transfer.importing import import_lines, mark_restored


@click.command("export", cls=EndwellCommand)
@click.argument("file", default="-", metavar="[FILE|-]")
@pass_asked
def export_events(asked: Options, file: str) -> None:
    """The whole record as JSON lines: content, events, and messages that wait.

    All namespaces unless --namespace names one. Without a file, or with -, to stdout. Safe while others
    work; what happens after it began may be missing from it.

    \b
      endwell events export backup.jsonl
    """
    with ExitStack() as stack:
        target = sys.stdout.buffer if file == "-" else stack.enter_context(_new_file(file))

        async def ask(node: Node) -> End:
            return await export(node.store, await all_namespaces(node, asked), target.write)

        amount = msgspec.to_builtins(with_node(asked, ask))
        target.flush()
    if file == "-":
        say(_amount(amount))
    else:
        show(asked, amount, _amount)


@contextmanager
def _new_file(name: str) -> Iterator[IO[bytes]]:
    """Readable by its owner alone; what is there is not overwritten, and half a record is not left."""
    try:
        opened = open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: SIM115
    except OSError as error:
        hint = "name a file that is not there yet"
        raise UsageError(f"{name}: {error.strerror}", hint=hint, field="file") from error
    try:
        with opened:
            yield opened
    except BaseException:
        os.unlink(name)
        raise


@click.command("import", cls=EndwellCommand)
@click.argument("file", metavar="FILE|-")
@pass_asked
def import_events(asked: Options, file: str) -> None:
    """Make an export the record of an empty store.

    Every line is checked first: that it can be read, that names are allowed, that hash chains are whole, that
    events can be folded, that content is what they name. If one is bad it is named by its number, and nothing
    is changed. A store that holds exactly this record already is left as it is (exit 0).

    \b
      endwell events import backup.jsonl --store sqlite:///new.db
    """
    with _file(file) as source:

        def read() -> Iterator[bytes]:
            source.seek(0)
            return split_lines(source)

        async def ask(node: Node) -> dict[str, Any]:
            return await import_lines(node.store, read, node.app.runtime.ids.new)

        show(asked, with_node(asked, ask, may_be_new=True), _imported)


@click.command(cls=EndwellCommand)
@click.option("--as", "who", metavar="NAME", help="Who says so; the submitting user unless said.")
@pass_asked
def restored(asked: Options, who: str | None) -> None:
    """Say that the store was restored from a backup.

    Run it after every restore, before the workers start. What was done outside since the backup is not in
    the record: of every task that is there now, an effect without a record is then unknown, so `reconcile`
    or a person is asked before it is executed. All namespaces unless --namespace names one.

    \b
      endwell restored --as ada
    """

    async def ask(node: Node) -> dict[str, Any]:
        namespaces = await all_namespaces(node, asked)
        actor = person_name(node.app.owner if who is None else who)
        await mark_restored(node.store, namespaces, node.app.runtime.ids.new, actor=actor)
        return {"namespaces": namespaces}

    show(asked, with_node(asked, ask), lambda found: f"restored: {', '.join(found['namespaces'])}")


def _file(name: str) -> IO[bytes]:
    """A file that can be read twice; what comes through a pipe is kept for that."""
    try:
        if name != "-":
            return open(name, "rb")
        spool = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
        shutil.copyfileobj(sys.stdin.buffer, spool)
        return spool
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}", hint="check the path", field="file") from error


def _amount(answer: dict[str, Any]) -> str:
    return ", ".join(f"{value} {name}" for name, value in answer.items() if isinstance(value, int))


def _imported(answer: dict[str, Any]) -> str:
    amount = _amount({name: value for name, value in answer.items() if name != "already_there"})
    return f"already there, nothing was changed: {amount}" if answer["already_there"] else amount


async def all_namespaces(node: Node, asked: Options) -> list[str]:
    """The one that was named, or all that there are."""
    if asked.namespace:
        return [asked.namespace]
    return sorted({*await node.store.namespaces(), node.app.namespace})
