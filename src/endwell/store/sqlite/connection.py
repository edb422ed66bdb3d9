"""Connections to a SQLite file: how they are opened, their transactions, and what their errors mean.

Full durability (`synchronous=FULL`), write-ahead log, no automatic checkpoints: `log_file.py` makes them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from endwell.errors import EndwellError, StoreError
from endwell.runtime.processes import has_open, process_id
from endwell.store.migrations import missing_migrations

log = logging.getLogger(__name__)

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""Size of the write-ahead log at which it is folded back into the file."""
BUSY_SECONDS = 30.0

PRAGMAS = (
    ("journal_mode", "wal"),
    ("synchronous", "full"),
    ("wal_autocheckpoint", "0"),
    ("journal_size_limit", str(CHECKPOINT_BYTES)),
    # When a page was split, the commit looks at every page in the cache: with 64 MiB that was a tenth of a
    # long drain. The operating system caches the rest.
    ("cache_size", "-8192"),
    ("temp_store", "memory"),
)

# One thread at a time uses a connection, by locks of our own: SQLite's would cost 3 % of a drain.
_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOMUTEX

Pause = Callable[[int], bool]
"""Called with how often the file was busy; waits a moment and says whether to try again."""


def count_no_memory() -> None:
    """Keep SQLite from counting every byte it uses, under a lock. Call it before a process connects."""
    if not apsw.connections():
        apsw.shutdown()
        apsw.config(apsw.SQLITE_CONFIG_MEMSTATUS, 0)
        apsw.initialize()


def connect(path: Path, pause: Pause) -> apsw.Connection:
    """Return a connection; a missing file is made, readable by its owner alone."""
    with explained(path):
        if not path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        _warn_of_second_library(path)
        connection = apsw.Connection(str(path), flags=_FLAGS, statementcachesize=200)
        connection.set_busy_handler(pause)
        # Otherwise the planner looks at bound values, and prepares most statements again for each new one.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for name, value in PRAGMAS:
            connection.execute(f"PRAGMA {name} = {value}").fetchall()
        _refuse_if_not_wal(connection, path)
        return connection


def _warn_of_second_library(path: Path) -> None:
    """Warn of another SQLite library: when it closes the file, the system drops all locks of this process."""
    ours = (os.path.realpath(connection.filename) for connection in apsw.connections())
    if os.path.realpath(path) not in ours and has_open(process_id(), path):
        log.warning(
            "%s is already open in this process, but not by Endwell (second_sqlite_library): another SQLite "
            "library, such as Python's sqlite3, breaks the file's locks. Use it in a process of its own",
            path,
        )


def read_pragma(connection: apsw.Connection, name: str) -> Any:
    """Return one of the database's settings."""
    return connection.execute(f"PRAGMA {name}").fetchall()[0][0]


def _refuse_if_not_wal(connection: apsw.Connection, path: Path) -> None:
    mode = read_pragma(connection, "journal_mode")
    if mode != "wal":
        raise StoreError(
            f"{path} cannot use a write-ahead log (journal mode is {mode})",
            code="store_unsuitable",
            hint="keep the file on a local disk; network file systems do not work",
        )


def migrate(connection: apsw.Connection, path: Path) -> int:
    """Bring the schema up to date; two processes starting at once take turns. Returns its version."""
    with explained(path):
        applied = _schema_version(connection)
        if not missing_migrations("sqlite", applied):
            return applied
        with immediate(connection):
            applied = _schema_version(connection)
            for step in missing_migrations("sqlite", applied):
                connection.execute(step.sql).fetchall()
                applied = step.number
            connection.execute(f"PRAGMA user_version = {applied}").fetchall()
        return applied


def _schema_version(connection: apsw.Connection) -> int:
    return int(read_pragma(connection, "user_version"))


class immediate:  # noqa: N801 (used like a function; a generator would cost more than the BEGIN)
    """A write transaction from its first statement on: it never has to be upgraded halfway."""

    __slots__ = ("_connection",)

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        with suppress(apsw.Error):  # SQLite may have rolled back by itself
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


_MEANINGS: tuple[tuple[type[apsw.Error], str, str, str], ...] = (
    (apsw.FullError, "store_full", "the disk is full", "free some space; Endwell then continues"),
    (apsw.ReadOnlyError, "store_read_only", "the store is read-only", "make the file and folder writable"),
    (apsw.NotADBError, "store_corrupt", "this is not an Endwell store", "check the path"),
    (apsw.CorruptError, "store_corrupt", "the store is damaged", "restore it from a backup"),
    (apsw.CantOpenError, "store_unreachable", "the store cannot be opened", "check path and permissions"),
    (apsw.PermissionsError, "store_unreachable", "the store may not be opened", "check the permissions"),
    (apsw.IOError, "store_io_error", "reading or writing the store failed", "check the disk"),
    (
        apsw.BusyError,
        "store_busy",
        "another process holds the store",
        "try again; is a process stopped in a transaction?",
    ),
    (apsw.LockedError, "store_busy", "the store is locked", "try again"),
)


class explained:  # noqa: N801 (likewise)
    """Turns SQLite's errors into ours, with a code and a hint, except those that the caller handles."""

    __slots__ = ("_leave", "_path")

    def __init__(self, path: Path, *, leave: tuple[type[Exception], ...] = (apsw.ConstraintError,)) -> None:
        self._path = path
        self._leave = leave

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        if error is None or isinstance(error, self._leave):
            return
        if isinstance(error, OSError):
            raise StoreError(f"{self._path}: {error.strerror}", hint="check path and permissions") from error
        if isinstance(error, apsw.Error):
            raise meaning_of(error, self._path) from error


def meaning_of(error: apsw.Error, path: Path) -> EndwellError:
    """Return our error for one of SQLite's."""
    for kind, code, what, hint in _MEANINGS:
        if isinstance(error, kind):
            return StoreError(f"{path}: {what} ({error})", code=code, hint=hint)
    return StoreError(f"{path}: {error}", code="store_error")
