"""The write-ahead log's file: it is folded back into the database when it has grown.

A process that sees the log grow takes a lock file and makes a checkpoint: one checkpointer at a time.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import apsw

from endwell.errors import StoreError
from endwell.store.sqlite.connection import CHECKPOINT_BYTES, read_pragma

TRUNCATE_BYTES: Final = 256 * 1024 * 1024
"""Size at which writers are made to wait, so that the log starts over even under constant readers."""
FRAME_HEADER_BYTES: Final = 24
"""What the log holds beside each page."""


class LogFile:
    """Learns from SQLite after each commit how long the log is."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self._lock_path = f"{path}-checkpoint"
        self._frame_bytes = int(read_pragma(connection, "page_size")) + FRAME_HEADER_BYTES
        self._used = 0
        self._name = connection.filename_wal
        self._inode = self._current_inode()
        connection.set_wal_hook(self._on_commit)

    def _current_inode(self) -> int | None:
        try:
            return os.stat(self._name).st_ino
        except FileNotFoundError:
            return None

    def require_same(self) -> None:
        """Refuse to write to a log that was deleted: no other process would ever read what is written.

        As long as this process holds its lock, no other deletes the log.
        """
        inode = self._current_inode()
        if self._inode is None:
            self._inode = inode
        elif inode != self._inode:
            raise StoreError(
                f"{self._name} was replaced: this process has lost SQLite's lock on the store",
                code="locks_lost",
                hint="restart this process, open the store with no second SQLite library (Python's sqlite3) "
                "in it, and run endwell events verify",
            )

    def _on_commit(self, connection: apsw.Connection, name: str, frames: int) -> int:
        """Other processes' share is included."""
        self._used = frames * self._frame_bytes
        return apsw.SQLITE_OK

    @property
    def is_long(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._used > CHECKPOINT_BYTES

    def fold_if_long(self, connection: apsw.Connection) -> None:
        """Make a checkpoint if the log is long."""
        if self.is_long:
            is_huge = self._used > TRUNCATE_BYTES
            self._fold(
                connection,
                apsw.SQLITE_CHECKPOINT_TRUNCATE if is_huge else apsw.SQLITE_CHECKPOINT_PASSIVE,
            )
            self._used = 0  # the next commit says how long it is

    def _fold(self, connection: apsw.Connection, mode: int) -> None:
        handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            connection.wal_checkpoint(mode=mode)
        except (BlockingIOError, apsw.BusyError):
            return  # another process makes a checkpoint
        finally:
            os.close(handle)
