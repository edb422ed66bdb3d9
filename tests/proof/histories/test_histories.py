"""200 random histories on SQLite and PostgreSQL; `python -m tests.proof.histories --count 1000` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tally
from tests.proof.histories.runner import run_histories
from tests.seeds import seeds
from tests.servers.postgres import Postgres
from tests.store.world import PostgresDatabase, SqliteDatabase

RUNS = 2
ON_SQLITE = 75
ON_POSTGRES = 25
"""Histories of each run: 200 in all."""


@pytest.mark.parametrize("number", range(RUNS))
def test_invariants_hold_after_any_commands_on_sqlite(number: int, tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "endwell.db")
    done = run_histories(database, ON_SQLITE, seeds(RUNS)[number])

    assert done >= ON_SQLITE
    tally.count("histories", done)


@pytest.mark.parametrize("number", range(RUNS))
def test_invariants_hold_after_any_commands_on_postgres(number: int, postgres_server: Postgres) -> None:
    database = PostgresDatabase(postgres_server.create_database())
    done = run_histories(database, ON_POSTGRES, seeds(RUNS)[number])

    assert done >= ON_POSTGRES
    tally.count("histories", done)
