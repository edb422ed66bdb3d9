"""Here every store is one on SQLite."""

from __future__ import annotations

import pytest

from tests.store.world import Database, SqliteDatabase


@pytest.fixture
def database(sqlite_database: SqliteDatabase) -> Database:
    """A fresh file."""
    return sqlite_database
