"""The limit: the same work as a bare batched loop on one SQLite table, with nothing that makes it a system.

No log, no hash, no fence, no clock, no other process: insert, mark as claimed, keep the result. Same
durability (`synchronous=FULL`), same batch size as the door. Measured beside Endwell, so that figures
from different machines can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

BATCH = 256
_SCHEMA = """
CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT NOT NULL, payload TEXT NOT NULL, result TEXT);
CREATE INDEX ready ON jobs (id) WHERE status = 'queued';
"""
_INSERT = "INSERT INTO jobs (status, payload) VALUES ('queued', ?)"
_READY = "SELECT id, payload FROM jobs WHERE status = 'queued' ORDER BY id LIMIT ?"
_CLAIM = "UPDATE jobs SET status = 'running' WHERE id = ?"
_FINISH = "UPDATE jobs SET status = 'succeeded', result = ? WHERE id = ?"

GIVES = ("submit_one_by_one", "submit_bulk", "drain_1_worker")
"""The figures, named as Endwell's own rows."""
Timer = Callable[[], float]


def measure_rates(path: Path, timer: Timer, *, one_by_one: int, bulk: int) -> dict[str, tuple[float, int]]:
    """Rates per second and what they rest on, named as Endwell's own rows."""
    connection = _open(path)
    try:
        return {
            "submit_one_by_one": (_submit(connection, timer, one_by_one, 1), one_by_one),
            "submit_bulk": (_submit(connection, timer, bulk, BATCH), bulk),
            "drain_1_worker": (_drain_jobs(connection, timer, one_by_one + bulk), one_by_one + bulk),
        }
    finally:
        connection.close()


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    for pragma in ("journal_mode = wal", "synchronous = full"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute(_SCHEMA)
    return connection


@contextmanager
def _in_transaction(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def _submit(connection: apsw.Connection, timer: Timer, count: int, batch: int) -> float:
    begin = timer()
    for start in range(0, count, batch):
        with _in_transaction(connection):
            rows = [(str(number),) for number in range(start, min(start + batch, count))]
            connection.executemany(_INSERT, rows)
    return count / (timer() - begin)


def _drain_jobs(connection: apsw.Connection, timer: Timer, count: int) -> float:
    """Hand in the last batch and claim the next in one transaction, as the worker does."""
    begin = timer()
    done: list[tuple[Any, ...]] = []
    while True:
        with _in_transaction(connection):
            connection.executemany(_FINISH, done)
            taken = connection.execute(_READY, (BATCH,)).fetchall()
            connection.executemany(_CLAIM, [(row[0],) for row in taken])
        if not taken:
            return count / (timer() - begin)
        done = [(row[1], row[0]) for row in taken]
