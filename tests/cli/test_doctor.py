"""`endwell doctor` for people and for scripts."""

from __future__ import annotations

from pathlib import Path

import apsw

from tests.cli.conftest import Command, Stock
from tests.cli.shell import Shell


def test_doctor_reports_in_text_and_in_json(command: Command, stock: Stock, store: str) -> None:
    answer = command("doctor", "--store", store, "--json")
    assert answer.code == 0, answer.out
    assert answer.document["ok"]
    codes = {finding["code"] for finding in answer.document["findings"]}
    assert codes <= {"dead_letters_open", "no_supervisor"}
    assert {finding["severity"] for finding in answer.document["findings"]} == {"warning"}
    text = command("doctor", "--store", store).out
    assert "dead_letters_open: 1 dead letter is open" in text
    assert "endwell dlq list" in text


def test_a_broken_record_is_exit_1(command: Command, stock: Stock, store: str, tmp_path: Path) -> None:
    with apsw.Connection(str(tmp_path / "store.db")) as connection:
        connection.execute("UPDATE tasks SET status = 'succeeded' WHERE status = 'failed'").fetchall()
    answer = command("doctor", "--store", store, "--json")
    assert answer.code == 1
    assert answer.document["findings"][0]["code"] == "record_broken"


def test_a_missing_store_exits_with_5_and_is_not_created(command: Command, tmp_path: Path) -> None:
    answer = command("doctor", "--store", f"sqlite:///{tmp_path}/typo.db", "--json")
    assert answer.code == 5
    assert [finding["code"] for finding in answer.document["findings"]] == ["store_missing"]
    assert not (tmp_path / "typo.db").exists()


def test_a_store_of_a_newer_release_is_a_finding_too(command: Command, store: str, tmp_path: Path) -> None:
    with apsw.Connection(str(tmp_path / "store.db")) as connection:
        connection.execute("PRAGMA user_version = 999").fetchall()
    answer = command("doctor", "--store", store, "--json")
    assert (answer.code, answer.document["findings"][0]["code"]) == (5, "schema_too_new")


def test_a_supervised_worker_is_in_order(shell: Shell) -> None:
    with shell.serving("up"):
        shell.run("submit", "clerk", '{"id": "1"}', "--wait")
        answer = shell.run("doctor", "--json")
    assert (answer.code, answer.document["findings"]) == (0, [])


def test_metrics_are_in_the_form_that_prometheus_reads(command: Command, stock: Stock, store: str) -> None:
    lines = command("metrics", "--store", store).out.splitlines()
    assert 'endwell_tasks_accepted_total{namespace="default"} 2' in lines
    assert 'endwell_tasks_live{namespace="default"} 0' in lines
    assert "# TYPE endwell_supervised gauge" in lines
