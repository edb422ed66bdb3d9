"""Runs batches of commands, and named queries, on one SQLite connection; starts no thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from endwell.errors import EndwellError, StoreError
from endwell.model.commands import Command
from endwell.policy.limits import Limits
from endwell.store import door
from endwell.store.probe import Probe
from endwell.store.row_cache import RowCache
from endwell.store.rows import Outcome, Reply, Writes
from endwell.store.sqlite.connection import Pause, connect, explained, immediate, migrate, read_pragma
from endwell.store.sqlite.log_file import LogFile
from endwell.store.sqlite.row_reader import SqliteRowReader
from endwell.store.sqlite.row_writer import LostRaceError, write
from endwell.store.sqlite.statements import PROBES, QUERIES

_UNSTORABLE: Final = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.TooBigError,
    OverflowError,
    TypeError,
    ValueError,
)
"""Errors about the data of one command, which must not fail the other commands of its batch."""
_HANDLED: Final = (*_UNSTORABLE, apsw.IOError, apsw.FullError)


class NotAtOnceError(Exception):
    """Nothing was done: another process holds the file, or the batch has to be taken apart."""


class SqliteDriver:
    """One connection, used by one thread at a time."""

    def __init__(self, path: Path, *, limits: Limits, now: Callable[[], int], pause: Pause) -> None:
        self.path = path
        self._limits = limits
        self._now = now
        self._doubt: tuple[Sequence[Command], Outcome] | None = None
        self._is_careful = False
        self.may_wait = True
        self._cache = RowCache()
        self._connection = connect(path, lambda count: self.may_wait and pause(count))
        self.schema = migrate(self._connection, path)
        self._log_file = LogFile(path, self._connection)

    def close(self) -> None:
        self._connection.close()

    def run(self, commands: Sequence[Command], *, at_once: bool = False) -> Outcome:
        """Run all commands in one transaction; if the database refuses it, each in one of its own.

        With `at_once` the driver waits for no other process and begins nothing long; it raises
        `NotAtOnceError` instead.
        """
        self.may_wait = not at_once
        try:
            return self._try_with_cache(commands)
        except _UNSTORABLE as error:
            if at_once:
                raise NotAtOnceError from error
            return self._run_one_by_one(commands, error)
        except (apsw.IOError, apsw.FullError):
            with explained(self.path):
                outcome = self.find_stored(commands)  # a COMMIT that failed may still have taken place
                if outcome is None:
                    raise
                return outcome
        except StoreError as error:
            if at_once and error.code == "store_busy":
                raise NotAtOnceError from error
            raise

    def _try_with_cache(self, commands: Sequence[Command]) -> Outcome:
        """Cached rows need not be read; the version guard tells if another process has moved one."""
        try:
            outcome = self._try_once(commands)
        except LostRaceError:
            self._cache.forget()
            outcome = self._try_once(commands)
        self._cache.remember_writes(outcome.writes)
        return outcome

    def _try_once(self, commands: Sequence[Command]) -> Outcome:
        self._doubt = None
        with explained(self.path, leave=_HANDLED), immediate(self._connection):
            self._log_file.require_same()
            want = door.wanted_rows(commands, careful=self._is_careful)
            known = self._cache.find_tasks(want)
            is_cached, now = bool(known), self._now()
            rows = SqliteRowReader(self.rows, known=known, limits=self._limits, now=now).read(want)
            outcome = door.outcome(commands, rows, now, self._limits)
            if is_cached and any(reply.refusal is not None for reply in outcome.replies):
                raise LostRaceError  # a refusal writes nothing, so no version guard would notice
            self._write(outcome.writes)
            self._doubt = (commands, outcome)
        return outcome

    def _write(self, writes: Writes) -> None:
        write(self._connection, writes)

    def _run_one_by_one(self, commands: Sequence[Command], error: Exception) -> Outcome:
        """Find the command that the database refuses, and run the others."""
        if self._is_careful:
            refusal = EndwellError(f"the store refused the write: {error}", code="constraint")
            refusal.__cause__ = error
            return Outcome([Reply(refusal=refusal)], Writes(), set())
        merged = Outcome([], Writes(), set())
        self._cache.forget()
        self._is_careful = True
        try:
            for command in commands:
                single = self.run((command,))
                merged.replies += single.replies
                merged.bells |= single.bells
        finally:
            self._is_careful = False
        return merged

    def find_stored(self, commands: Sequence[Command]) -> Outcome | None:
        """Return the outcome of the last batch if these were its commands and its COMMIT took place."""
        self._cache.forget()
        if self._doubt is None or self._doubt[0] is not commands:
            return None
        outcome = self._doubt[1]
        trace = outcome.writes.presence_query
        return outcome if trace is not None and self.rows(*trace) else None

    @property
    def is_log_long(self) -> bool:
        """Whether it is time for a checkpoint, which takes a while."""
        return self._log_file.is_long

    def checkpoint(self) -> None:
        """Fold a long write-ahead log back into the file."""
        self.may_wait = True
        self._log_file.fold_if_long(self._connection)

    def rows(self, name: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of one named query; lists among the parameters go as JSON."""
        return self._connection.execute(QUERIES[name], _with_json(parameters)).fetchall()

    def probe(self, now: int, asked: Sequence[Probe]) -> tuple[Any, ...]:
        """Return the answers to several named queries, after the time."""
        sql, parameters = PROBES.compose_sql(asked)
        return next(self._connection.execute(sql, (now, *_with_json(parameters))))

    def data_version(self) -> int | None:
        """Return a number that changes when another connection has committed; None while the file is busy."""
        try:
            return int(read_pragma(self._connection, "data_version"))
        except apsw.Error:
            return None

    def settings(self) -> dict[str, Any]:
        """Return the database's version and durability settings."""
        names = ("journal_mode", "synchronous", "wal_autocheckpoint", "page_size", "cache_size")
        read = {name: read_pragma(self._connection, name) for name in names}
        return {"store": "sqlite", "sqlite_version": apsw.sqlite_lib_version(), **read}


def _with_json(parameters: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(json.dumps(value) if isinstance(value, (list, tuple)) else value for value in parameters)
