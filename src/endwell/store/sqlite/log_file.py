"""The write-ahead log's file: folded back when it has grown, and longer than it need be while it has not.

Whoever sees the log grow takes a lock file and checkpoints, so that there is one checkpointer at a time.

Syncing a file that has just grown waits for the file system's own journal as well, longer than all the rest
of a small commit takes. So while a process makes many small commits, zeros are written behind the end of
the log. SQLite overwrites them in place, and whoever reads the log after a crash stops at them.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import apsw

from endwell.store.sqlite.connection import CHECKPOINT_BYTES, immediate, read_pragma

TRUNCATE_BYTES: Final = 256 * 1024 * 1024
"""Size at which writers are made to wait, so that the log starts over even under constant readers."""
FRAME_HEADER_BYTES: Final = 24
"""What the log holds beside each page."""
STEP_BYTES: Final = 1024 * 1024
"""So much room is made at a time; writers wait some 2 ms for it."""
SMALL_BYTES: Final = 128 * 1024
"""What a commit may write to count as small: a larger one has other things to wait for."""
MANY: Final = 8
"""Small commits after which room is worth while: who makes a few and leaves needs none."""


class LogFile:
    """Told by SQLite after each commit of its connection how long the log is."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self._path = f"{path}-wal"
        self._lock_path = f"{path}-checkpoint"
        self._frame_bytes = int(read_pragma(connection, "page_size")) + FRAME_HEADER_BYTES
        self._used = 0
        self._small_commits = 0
        self._room = 0
        connection.set_wal_hook(self._note)

    def _note(self, connection: apsw.Connection, name: str, frames: int) -> int:
        """Other processes' share is included."""
        used = frames * self._frame_bytes
        self._small_commits += 0 < used - self._used <= SMALL_BYTES
        self._used = used
        return apsw.SQLITE_OK

    @property
    def is_long(self) -> bool:
        """Whether it is time to fold it back."""
        return self._used > CHECKPOINT_BYTES

    def fold_if_long(self, connection: apsw.Connection) -> None:
        """Cheap when there is nothing to do."""
        if self.is_long:
            is_huge = self._used > TRUNCATE_BYTES
            self._fold(
                connection,
                apsw.SQLITE_CHECKPOINT_TRUNCATE if is_huge else apsw.SQLITE_CHECKPOINT_PASSIVE,
            )
            self._used = 0  # the next commit tells anew

    def _fold(self, connection: apsw.Connection, mode: int) -> None:
        handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            connection.wal_checkpoint(mode=mode)
        except (BlockingIOError, apsw.BusyError):
            return  # somebody else is at it
        finally:
            os.close(handle)

    @property
    def is_tight(self) -> bool:
        """Whether it should be made longer: as much is to be free as was used, until it is folded back."""
        wanted = min(max(2 * self._used, STEP_BYTES), CHECKPOINT_BYTES)
        return self._room < wanted and self._small_commits >= MANY

    def make_room(self, connection: apsw.Connection) -> None:
        """One step. A file that cannot be made longer is left as it was, and let be."""
        try:
            handle = os.open(self._path, os.O_RDWR)
        except OSError:
            self._room = CHECKPOINT_BYTES
            return
        try:
            with immediate(connection):  # nobody else writes behind the file's end meanwhile
                self._room = _made_longer(handle)
            os.fdatasync(handle)
        except apsw.BusyError:
            self._small_commits = 0  # somebody writes much; the next few commits ask again
        finally:
            os.close(handle)


def _made_longer(handle: int) -> int:
    """How long it is then; where there is no room for more, as long as anybody wants it."""
    size = os.fstat(handle).st_size
    step = min(STEP_BYTES, max(CHECKPOINT_BYTES - size, 0))
    try:
        if os.pwrite(handle, bytes(step), size) == step:
            return size + step
    except OSError:
        pass
    os.ftruncate(handle, size)
    return CHECKPOINT_BYTES
