"""An effect store in a SQLite file of its own, with the same durability as the store itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

from endwell.runtime.base import Runtime
from endwell.store.effect_store import EffectStore
from endwell.store.sqlite.connection import connect, explained

PAUSE_SECONDS = 0.01
MOST_PAUSES = 1_000

_CREATE = """CREATE TABLE IF NOT EXISTS effect_results
    (key TEXT PRIMARY KEY, content BLOB NOT NULL, attempt_id TEXT NOT NULL) WITHOUT ROWID"""
_GET = "SELECT content FROM effect_results WHERE key = ?"
_PUT = "INSERT INTO effect_results VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"


class SqliteEffectStore(EffectStore):
    """One file, used by one of the runtime's threads at a time."""

    def __init__(self, path: str | Path, *, runtime: Runtime | None = None) -> None:
        self._path = Path(path)
        self._runtime = runtime or Runtime.system(threads=1)
        self._lock = self._runtime.new_lock()
        self._connection: apsw.Connection | None = None

    async def get(self, key: str) -> bytes | None:
        return await self._runtime.in_thread(self._get, key)

    async def put(self, key: str, content: bytes, attempt_id: str) -> None:
        await self._runtime.in_thread(self._put, key, content, attempt_id)

    async def close(self) -> None:
        await self._runtime.in_thread(self._close)

    def _get(self, key: str) -> bytes | None:
        with self._lock, explained(self._path):
            found: Any = self._open_connection().execute(_GET, (key,)).get
            return None if found is None else bytes(found)

    def _put(self, key: str, content: bytes, attempt_id: str) -> None:
        with self._lock, explained(self._path):
            self._open_connection().execute(_PUT, (key, content, attempt_id))

    def _open_connection(self) -> apsw.Connection:
        if self._connection is None:
            connection = connect(self._path, self._pause)
            connection.execute("PRAGMA wal_autocheckpoint = 1000").fetchall()
            connection.execute(_CREATE)
            self._connection = connection
        return self._connection

    def _pause(self, count: int) -> bool:
        self._runtime.block(PAUSE_SECONDS)
        return count < MOST_PAUSES

    def _close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
