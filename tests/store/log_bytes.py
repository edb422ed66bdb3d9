"""How much of its write-ahead log a store uses; behind that may be pages from before a checkpoint."""

from __future__ import annotations

from pathlib import Path

import apsw

from endwell.store.sqlite.log_file import FRAME_HEADER_BYTES

PAGE_BYTES = 4096


def log_bytes(path: Path) -> int:
    """As a reader sees it."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # now it has looked at the log
        frames, _ = connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_NOOP)
    finally:
        connection.close()
    return frames * (PAGE_BYTES + FRAME_HEADER_BYTES)
