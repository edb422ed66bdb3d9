"""Fuzzing the command line: any words, on a sound store and on a damaged one."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import apsw
import click

from endwell.cli.main import cli, run
from endwell.errors import EndwellError
from endwell.model.task import FIELDS
from tests.proof.fuzz.campaign import Target
from tests.proof.fuzz.of_content import told
from tests.proof.fuzz.of_store import histories

_EXITS: Final = (0, 1, 2, 3, 4, 5, 6)
"""Exit codes that the contract allows without an interruption; 70 is a bug."""
_ENDLESS: Final = ("worker", "pmo", "up", "demo", "bench", "--follow", "--wait", "migrate")
_WORDS: Final = (
    "submit coder {{}}",
    "submit coder/k1 [1,2] --key order-1 --priority 5 --json",
    "submit coder 5 --delay 1.5m --deadline 2h --channel main",
    "submit-many coder @lines.jsonl --json",
    "task list --limit 3 --json",
    "task list --status failed --agent coder",
    "task show {id} --json",
    "task history {id}",
    "task tree {id}",
    "task cancel {id}",
    "task retry {id} --json",
    "why {id} --json",
    "why {id}",
    "approval list --all --json",
    "approval approve {id} --as ada",
    "tool list --json",
    "tool answer {id}.s.x 5",
    "signal {id} go {{}}",
    "effect list --json",
    "effect settle pay:1 done --as ada",
    "dlq list --json",
    "dlq show {id}",
    "dlq replay {id} --set a.b=5",
    "dlq abandon {id} --note gone",
    "events tail --after 0 --json",
    "events tail --type task.*",
    "events verify --json",
    "config show --json",
    "--json --namespace default task list",
    "--version",
    "task --help",
)
_QUESTIONS: Final = (
    "task show {id}",
    "task history {id} --json",
    "why {id} --json",
    "task list --json",
    "events verify",
    "events tail --json",
    "dlq list",
    "approval list --all",
    "effect list",
    "task tree {id}",
)


def _words_of(data: bytes) -> list[str]:
    words = [word.decode("utf-8", "surrogateescape") for word in data.replace(b"\n", b" ").split(b" ")]
    return [word.replace("\0", "") for word in words]


def _parsed(data: bytes) -> bool:
    """Parse the words without carrying the command out."""
    with contextlib.redirect_stdout(io.StringIO()):  # where help goes
        return _parsed_words(_words_of(data))


def _parsed_words(words: list[str]) -> bool:
    command: Any = cli
    context: click.Context | None = None
    try:
        while True:
            context = command.make_context(command.name or "endwell", words, parent=context)
            if not isinstance(command, click.Group):
                return True
            left = [*context._protected_args, *context.args]
            if not left:
                return False
            _, command, words = command.resolve_command(context, left)
    except EndwellError as refusal:
        return told(refusal)
    except click.exceptions.Exit:
        return True
    except click.ClickException as refusal:
        refusal.format_message()
        return False


class Terminal:
    """A directory with a store in it, and what a command prints there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        self.ids = [history.row.id for history in histories(home)]
        (home / "sound.db").write_bytes((home / "store.db").read_bytes())
        (home / "lines.jsonl").write_text('1\n{"a":2}\n')

    @contextlib.contextmanager
    def _inside(self) -> Iterator[tuple[io.StringIO, io.StringIO]]:
        """Enter the directory with its settings; afterwards everything is as before."""
        before, root = Path.cwd(), logging.getLogger()
        handlers, level, stdin = root.handlers[:], root.level, os.environ.get("ENDWELL_STORE")
        os.chdir(self.home)
        os.environ["ENDWELL_STORE"] = "sqlite:///store.db"
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                yield out, err
        finally:
            os.chdir(before)
            root.handlers[:], root.level = handlers, level
            if stdin is None:
                del os.environ["ENDWELL_STORE"]

    def run(self, words: list[str]) -> bool:
        """Carry out a command; return whether it was accepted."""
        with self._inside() as (out, err):
            code = run(words)
        said = err.getvalue()
        assert "Traceback" not in said or "--debug" in words, said
        assert code in _EXITS, f"exit {code}: {said}"
        if "--json" in words and code not in (0, 2) and out.getvalue():
            for line in out.getvalue().splitlines():
                json.loads(line)
        return code in (0, 1)

    def restored(self) -> None:
        for leftover in self.home.glob("store.db*"):
            leftover.unlink()
        shutil.copyfile(self.home / "sound.db", self.home / "store.db")

    def words(self, dice: Random) -> bytes:
        return dice.choice(_WORDS).format(id=dice.choice(self.ids)).encode()


def _harmless(words: list[str]) -> bool:
    """Whether a command ends by itself and leaves files outside the directory alone."""
    text = " ".join(words)
    is_away = any(hint in text for hint in ("sqlite:////", "..", "%2", "postgres", "--app", "--store"))
    is_short_f = any(word.startswith("-") and not word.startswith("--") and "f" in word for word in words)
    return not (is_away or is_short_f or any(word in _ENDLESS for word in words) or "-" in words)


def _carried_out(terminal: Terminal) -> Target:
    def take(data: bytes) -> bool:
        words = _words_of(data)
        return terminal.run(words) if _harmless(words) else _parsed(data)

    return Target(name="command", share=2.5, valid=terminal.words, take=take)


_SPOILED: Final = {
    "tasks": tuple(name for name in FIELDS if name not in ("namespace", "id")),
    "events": ("data", "hash", "type", "schema", "at", "version", "attempt_id", "actor"),
    "cards": ("content", "hash", "kind", "created_at"),
    "dead_letters": ("reason", "failed_at", "status"),
    "approvals": ("expire_at", "asked_of", "question"),
}


def _spoiled(terminal: Terminal) -> Target:
    """Read lines of `table column value question`: the cell is changed behind the store's back."""

    def valid(dice: Random) -> bytes:
        table = dice.choice(list(_SPOILED))
        column = dice.choice(_SPOILED[table])
        question = dice.choice(_QUESTIONS).format(id=dice.choice(terminal.ids))
        value = dice.choice(
            (b"", b"x", b"5", b"null", b"[]", b"{}", b"-1", b'{"a":1}', b"\xff\xfe", b"9" * 18)
        )
        return b"\n".join((table.encode(), column.encode(), value, question.encode()))

    def take(data: bytes) -> bool:
        parts = (data.split(b"\n") + [b""] * 4)[:4]
        table, column, question = (parts[n].decode("utf-8", "replace") for n in (0, 1, 3))
        words = _words_of(question.encode())
        if column not in _SPOILED.get(table, ()) or not _harmless(words):
            return False
        terminal.restored()
        if not _spoil(terminal.home / "store.db", table, column, parts[2]):
            return False
        return terminal.run(words)

    return Target(name="spoiled-store", share=1.5, valid=valid, take=take, noise=valid)


def _spoil(path: Path, table: str, column: str, value: bytes) -> bool:
    """Change a cell; return whether the database's own checks allowed it."""
    connection = apsw.Connection(str(path))
    try:
        written: Any = int(value) if value.lstrip(b"-").isdigit() and len(value) < 19 else value
        if isinstance(written, bytes) and column not in ("data", "hash", "content"):
            written = value.decode("utf-8", "replace")
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid % 3 = 0", (written,))
    except apsw.Error:
        return False
    finally:
        connection.close()
    return True


def targets(home: Path) -> tuple[Target, ...]:
    terminal, spoiled = Terminal(home / "terminal"), Terminal(home / "spoiled")
    return (
        Target(name="words", share=30, valid=terminal.words, take=_parsed),
        _carried_out(terminal),
        _spoiled(spoiled),
    )
