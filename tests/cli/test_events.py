"""The log: read, followed, and checked against every way of tampering with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from endwell import Endwell
from endwell.cli import events as cli_events
from endwell.errors import StoreError
from endwell.operate.record import verify
from endwell.runtime.child_process import start_process
from endwell.store.log import Event
from tests.cli.conftest import Command, Stock
from tests.cli.shell import SECONDS, Shell
from tests.servers.postgres import PostgresServer
from tests.store.copies import WRITTEN
from tests.store.world import PostgresDatabase
from tests.store.world import World as StoreWorld

Tamper = Callable[[Path], None]


@pytest.mark.covers("S4.45", "S4.51", "S4.53")
def test_the_log_has_the_failure_and_the_dead_letter(command: Command, stock: Stock, store: str) -> None:
    words = ("events", "tail", "--type", "task.failed", "--type", "task.d*q", "--store", store, "--json")
    events = command(*words).lines
    assert [(event["type"], event["task_id"]) for event in events] == [
        ("task.failed", stock.failed),
        ("task.dlq", stock.failed),
    ]


def test_tail_continues_after_its_cursor(command: Command, stock: Stock, store: str) -> None:
    every = command("events", "tail", "--store", store, "--json").lines
    rest = command("events", "tail", "--after", every[2]["cursor"], "--store", store, "--json").lines
    assert rest == every[3:]
    assert command("events", "tail", "--after", "now", "--store", store).out == ""


async def test_tail_says_that_a_transaction_holds_back_events(
    command: Command, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_events, "HELD_BACK_SECONDS", -1.0)
    words = ("events", "tail", "--store", postgres_url)
    assert (await asyncio.to_thread(command, "migrate", "--store", postgres_url)).code == 0
    writer = await asyncpg.connect(postgres_url)
    await writer.execute("BEGIN")
    await writer.execute(WRITTEN, "late")
    other = await asyncpg.connect(postgres_url)
    await other.execute(WRITTEN.replace("'default', $1", "'default', 'done'"))
    answer = await asyncio.to_thread(command, *words)
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.count("held back by an open transaction; endwell doctor names it") == 1
    await writer.execute("ROLLBACK")
    answer = await asyncio.to_thread(command, *words)
    assert (len(answer.out.splitlines()), answer.err) == (1, "")
    await writer.close()
    await other.close()


def test_tail_follows_new_events(shell: Shell, stock: Stock) -> None:
    words = [sys.executable, "-m", "endwell", "events", "tail", "-f", "--json"]
    child = start_process(words, {**shell.environment, "PYTHONFAULTHANDLER": "1"}, cwd=shell.directory)
    try:
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["type"] != "task.dlq":
            seen.append(json.loads(child.read_line(SECONDS) or ""))
        new = shell.run("submit", "clerk", '{"id": "new"}', "--json").document
        assert json.loads(child.read_line(SECONDS) or "")["task_id"] == new["id"]
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(SECONDS) == 130
    finally:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGABRT)  # where it hangs is then told on stderr
            child.wait(SECONDS)
        child.kill()
        child.wait(SECONDS)
        child.close()


async def test_tail_follows_through_an_outage_of_the_store(
    shell: Shell, honest_postgres_server: PostgresServer
) -> None:
    url = honest_postgres_server.create_database()
    world = StoreWorld(PostgresDatabase(url))
    await world.open()
    words = [sys.executable, "-m", "endwell", "events", "tail", "-f", "--json", "--store", url]
    child = start_process(words, shell.environment, cwd=shell.directory)

    async def next_task() -> str:
        line = await asyncio.to_thread(child.read_line, SECONDS)
        return str(json.loads(line or "")["task_id"])

    try:
        first = await world.queued_task()
        assert await next_task() == first.id
        honest_postgres_server.kill()
        with pytest.raises(StoreError):
            await world.queued_task()  # for as long as a command asks on
        honest_postgres_server.start()
        last = await world.queued_task()
        assert await next_task() == last.id
    finally:
        child.kill()
        child.wait(SECONDS)
        child.close()
        await world.close()


def test_an_untouched_log_is_whole(command: Command, stock: Stock, store: str) -> None:
    answer = command("events", "verify", "--store", store, "--json")
    assert (answer.code, answer.document) == (0, {"ok": True, "checked": 2, "found": 0, "problems": []})


def _sql(*statements: str) -> Tamper:
    def tamper(path: Path) -> None:
        with apsw.Connection(str(path)) as connection:
            for statement in statements:
                connection.execute(statement).fetchall()

    return tamper


_ONE = "task_id = (SELECT id FROM tasks WHERE agent = 'clerk')"
_SWAP = f"""
    CREATE TEMP TABLE seen AS SELECT * FROM events WHERE {_ONE};
    UPDATE events SET (type, data, hash) =
        (SELECT type, data, hash FROM seen WHERE seen.version = 5 - events.version)
    WHERE {_ONE} AND version IN (2, 3);
"""


@pytest.mark.parametrize(
    ("tamper", "version", "kind"),
    [
        (_sql(f"UPDATE events SET data = CAST('{{}}' AS BLOB) WHERE {_ONE} AND version = 2"), 2, "changed"),
        (_sql(f"UPDATE events SET actor = 'mallory' WHERE {_ONE} AND version = 1"), 1, "changed"),
        (_sql(f"DELETE FROM events WHERE {_ONE} AND version = 2"), 2, "missing"),
        (_sql(f"DELETE FROM events WHERE {_ONE} AND version = 1"), 1, "missing"),
        (_sql(_SWAP), 2, "changed"),
        (_sql(f"DELETE FROM events WHERE {_ONE} AND version = 5"), 5, "cut_off"),
        (_sql(f"DELETE FROM events WHERE {_ONE}"), 1, "cut_off"),
        (_sql("UPDATE tasks SET priority = 7 WHERE agent = 'clerk'"), 5, "row_differs"),
        (_sql("UPDATE tasks SET deliverable_card = 'other' WHERE agent = 'clerk'"), 5, "row_differs"),
        (_sql("DELETE FROM tasks WHERE agent = 'clerk'"), 5, "task_missing"),
    ],
    ids=[
        "changed",
        "changed-column",
        "missing",
        "missing-first",
        "reordered",
        "cut-off",
        "whole-log-gone",
        "row-edited",
        "row-edited-result",
        "row-gone",
    ],
)
def test_tampering_is_found(
    command: Command, stock: Stock, store: str, tmp_path: Path, tamper: Tamper, version: int, kind: str
) -> None:
    tamper(tmp_path / "store.db")
    answer = command("events", "verify", "--store", store, "--json")
    assert answer.code == 1
    assert answer.document["ok"] is False
    assert answer.document["problems"][0] == {
        "task_id": stock.succeeded,
        "version": version,
        "kind": kind,
        "about": "",
    }
    assert {problem["task_id"] for problem in answer.document["problems"]} == {stock.succeeded}
    assert kind in command("events", "verify", "--store", store).out


def test_verify_reads_every_page(
    command: Command, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "PAGE", 3)
    (tmp_path / "orders.jsonl").write_text("\n".join(f'{{"id": "{n}"}}' for n in range(20)), encoding="utf-8")
    ids = command("submit-many", "clerk", "@orders.jsonl", "--store", store, "--json").document["ids"]
    gone, unlogged = ids[4:9], ids[12:17]
    _sql(
        f"DELETE FROM tasks WHERE id IN {tuple(gone)}",
        f"DELETE FROM events WHERE task_id IN {tuple(unlogged)}",
        f"UPDATE tasks SET owner = 'eve' WHERE id = '{ids[-1]}'",
    )(tmp_path / "store.db")
    found = command("events", "verify", "--store", store, "--json").document
    assert found["checked"] == 20
    assert [(item["task_id"], item["kind"]) for item in found["problems"]] == [
        *((task_id, "task_missing") for task_id in gone),
        *((task_id, "cut_off") for task_id in unlogged),
        (ids[-1], "row_differs"),
    ]


async def test_verify_does_not_mistake_concurrent_work_for_tampering(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Endwell(store).connect() as node:
        handle = await node.client.submit("clerk", {"id": "1"})
        read = node.store.events_between

        async def read_after_somebody_wrote(*arguments: str) -> list[Event]:
            await handle.cancel()
            return await read(*arguments)

        monkeypatch.setattr(node.store, "events_between", read_after_somebody_wrote)
        answer = await verify.verify(node.store, ["default"])
    assert answer == {"ok": True, "checked": 1, "found": 0, "problems": []}


def test_an_export_makes_another_store_with_the_same_results(
    command: Command, stock: Stock, store: str, tmp_path: Path
) -> None:
    backup, other = str(tmp_path / "backup.jsonl"), f"sqlite:///{tmp_path}/other.db"
    written = command("events", "export", backup, "--store", store, "--json")
    assert (written.code, written.document["messages"]) == (0, 0)
    assert os.stat(backup).st_mode & 0o077 == 0
    again = command("events", "export", backup, "--store", store, "--json")
    assert (again.code, again.error["code"]) == (2, "usage"), "a file that is there is not overwritten"

    read = command("events", "import", backup, "--store", other, "--json")
    assert (read.code, read.document["tasks"]) == (0, 2)
    assert command("events", "verify", "--store", other).code == 0
    shown = command("task", "show", stock.succeeded, "--store", other, "--json").document
    assert shown == command("task", "show", stock.succeeded, "--store", store, "--json").document
    assert shown["result"] == 6
    second = command("events", "import", backup, "--store", other, "--json")
    assert (second.code, second.document["already_there"]) == (0, True)
    assert command("events", "import", backup, "--store", other).out.startswith("already there, nothing was")
    assert command("dlq", "replay", stock.failed, "--store", other).code == 0
    third = command("events", "import", backup, "--store", other, "--json")
    assert (third.code, third.error["code"]) == (4, "store_not_empty")


def test_a_failed_export_leaves_no_file(command: Command, tmp_path: Path) -> None:
    backup = tmp_path / "backup.jsonl"
    failed = command("events", "export", str(backup), "--store", f"sqlite:///{tmp_path}/nothing.db", "--json")
    assert (failed.code, failed.error["code"]) == (5, "store_missing")
    assert not backup.exists()


def test_an_export_goes_through_a_pipe(shell: Shell, stock: Stock) -> None:
    written = shell.run("events", "export")
    assert written.code == 0
    read = shell.run("events", "import", "-", "--store", "sqlite:///other.db", "--json", stdin=written.out)
    assert (read.code, read.document["tasks"]) == (0, 2)
    cut = shell.run(
        "events", "import", "-", "--store", "sqlite:///third.db", "--json", stdin=written.out[:-20]
    )
    assert (cut.code, cut.error["code"]) == (4, "bad_line")
    assert cut.error["field"] == f"line {len(written.out.splitlines())}"
