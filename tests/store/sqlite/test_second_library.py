"""A second SQLite library in one process drops the locks of the first; Endwell notices."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from endwell import Endwell
from tests.cli.shell import Shell

APP = """
import sqlite3
from endwell import Endwell

app = Endwell("sqlite:///store.db")


@app.agent("peeper")
async def peeper(closes: bool) -> int:
    other = sqlite3.connect("store.db" if closes else "other.db")
    (count,) = other.execute("SELECT count(*) FROM sqlite_master").fetchone()
    other.close()
    return count
"""


@pytest.mark.parametrize("closes", [True, False])
def test_doctor_names_a_worker_whose_agent_opened_and_closed_the_store_with_sqlite3(
    tmp_path: Path, closes: bool
) -> None:
    shell = Shell(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    with shell.serving("up", "--json") as child:
        done = shell.run("submit", "peeper", json.dumps(closes), "--wait", "--timeout", "60", "--json")
        assert done.document["status"] == "succeeded"
        report = shell.run("doctor", "--json").document
    lost = [found["facts"]["pid"] for found in report["findings"] if found["code"] == "locks_lost"]
    assert lost == ([child.pid] if closes else [])


def test_opening_a_store_that_sqlite3_has_open_in_this_process_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    app = Endwell(f"sqlite:///{path}")

    @app.agent("clerk")
    async def clerk() -> None: ...

    with caplog.at_level(logging.WARNING), app.running():
        pass
    assert "second_sqlite_library" not in caplog.text
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT 1 FROM tasks LIMIT 1").fetchall()
        with app.running():
            pass
    assert caplog.text.count("second_sqlite_library") >= 1
