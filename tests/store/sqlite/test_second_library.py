"""A second SQLite library in one process drops the locks of the first; Endwell notices."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
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


CLIENT = """
import sqlite3, sys
from app import app

sys.stdin.readline()
other = sqlite3.connect("store.db")
other.execute("SELECT count(*) FROM sqlite_master").fetchone()
other.close()
print("closed", flush=True)
sys.stdin.readline()
try:
    app.submit("peeper", False)
except Exception as error:
    print(error.code, flush=True)
"""


def test_a_client_that_has_lost_its_lock_is_named_and_accepts_no_task(tmp_path: Path) -> None:
    """Its write-ahead log is deleted by the next process that closes the store."""
    shell = Shell(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    with shell.serving("up", "--json"):
        assert shell.run("submit", "peeper", "false", "--wait", "--timeout", "60", "--json").code == 0
    words = [sys.executable, "-c", "from app import app; app.submit('peeper', False)\n" + CLIENT]
    with subprocess.Popen(
        words, env=shell.environment, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.stdout.readline() == "closed\n"
        report = shell.run("doctor", "--json").document
        assert [f["facts"]["pid"] for f in report["findings"] if f["code"] == "locks_lost"] == [client.pid]
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.stdout.readline() == "locks_lost\n"


FORKING = """
import os, sys, time
from app import app

app.submit("peeper", False)
if os.fork() == 0:
    time.sleep(3600)
print("forked", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_was_forked_from_a_client_is_not_named(tmp_path: Path) -> None:
    """It has inherited the open file, and no lock."""
    shell = Shell(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    with shell.serving("up", "--json"):
        assert shell.run("submit", "peeper", "false", "--wait", "--timeout", "60", "--json").code == 0
    client = subprocess.Popen(
        [sys.executable, "-c", FORKING],
        env=shell.environment,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == b"forked\n"
        report = shell.run("doctor", "--json").document
        assert [found for found in report["findings"] if found["code"] == "locks_lost"] == []
    finally:
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()


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
