"""`python -m tests.proof.histories --count 1000 --seed 5`: a quarter of them on PostgreSQL."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.proof.histories.runner import run_histories
from tests.servers.postgres import postgres_for_tests
from tests.store.world import PostgresDatabase, SqliteDatabase


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.histories", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    on_postgres = asked.count // 4
    server = postgres_for_tests()
    try:
        with tempfile.TemporaryDirectory() as home:
            database = SqliteDatabase(Path(home) / "endwell.db")
            done = run_histories(database, asked.count - on_postgres, asked.seed)
        done += run_histories(PostgresDatabase(server.create_database()), on_postgres, asked.seed)
    finally:
        server.stop()
    sys.stdout.write(f"{done} histories on two stores held\n")
    return 0 if done >= asked.count else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
