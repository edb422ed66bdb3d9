"""`endwell submit` and `submit-many`: answers and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Stock
from tests.cli.shell import Shell


def test_a_submitted_task_is_carried_out_by_a_worker_process(shell: Shell) -> None:
    with shell.serving("worker"):
        answer = shell.run(
            "submit", "clerk", '{"id": "1", "items": 5}', "--wait", "--timeout", "20s", "--json"
        )
    assert answer.code == 0
    task = answer.document
    assert (task["status"], task["result"], task["deduplicated"]) == ("succeeded", 15, False)
    assert task["payload"] == {"id": "1", "items": 5}


def test_a_task_that_does_not_succeed_makes_the_wait_exit_with_1(shell: Shell) -> None:
    with shell.serving("up"):
        answer = shell.run("submit", "picky", '{"value": -5}', "--wait", "--json")
    assert answer.code == 1
    assert answer.document["status"] == "failed"
    assert "cannot take -5" in answer.document["error"]["message"]


def test_a_wait_that_times_out_exits_with_6_and_the_task_continues(command: Command, store: str) -> None:
    answer = command(
        "submit", "clerk", '{"id": "1"}', "--wait", "--timeout", "0.1", "--store", store, "--json"
    )
    assert answer.code == 6
    assert answer.error["code"] == "wait_timed_out"
    found = command("task", "show", answer.error["task_id"] or "", "--store", store, "--json")
    assert found.document["status"] == "queued"


def test_shared_options_may_stand_before_or_after_the_command(command: Command, store: str) -> None:
    before = command("--store", store, "--json", "submit", "clerk", '{"id": "1"}', "--key", "k")
    after = command("submit", "clerk", '{"id": "1"}', "--key", "k", "--store", store, "--json")
    assert before.document["id"] == after.document["id"]
    assert (before.document["deduplicated"], after.document["deduplicated"]) == (False, True)


def test_a_submission_takes_priority_delay_deadline_and_channel(command: Command, store: str) -> None:
    words = ("--delay", "15m", "--deadline", "2h", "--priority", "5", "--channel", "night")
    task = command("submit", "clerk/anna", '{"id": "1"}', *words, "--store", store, "--json").document
    assert (task["agent"], task["agent_key"], task["channel"], task["priority"]) == (
        "clerk",
        "anna",
        "night",
        5,
    )
    assert task["run_at"] > task["created_at"]
    assert task["ends_by"] > task["run_at"]


def test_a_payload_comes_from_a_file_or_from_stdin(shell: Shell, store: str) -> None:
    (shell.directory / "order.json").write_text('{"id": "ä"}\n', encoding="utf-8")
    from_file = shell.run("submit", "clerk", "@order.json", "--key", "k", "--json")
    from_stdin = shell.run("submit", "clerk", "-", "--key", "k", "--json", stdin='{"id": "ä"}')
    assert from_file.document["payload"] == {"id": "ä"}
    assert from_stdin.document["deduplicated"] is True


def test_tasks_of_another_namespace_are_not_seen(command: Command, stock: Stock, store: str) -> None:
    assert command("task", "list", "--store", store, "--json", "--namespace", "other").document["items"] == []
    answer = command("submit", "clerk", '{"id": "1"}', "--store", store, "--json", "--namespace", "other")
    assert answer.error["code"] == "unknown_agent"


@pytest.mark.parametrize("count", [3, 4500])
def test_many_tasks_come_from_one_file(command: Command, store: str, tmp_path: Path, count: int) -> None:
    lines = [json.dumps({"id": str(number)}) for number in range(count)]
    (tmp_path / "orders.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    answer = command("submit-many", "clerk", "@orders.jsonl", "--store", store, "--json")
    assert answer.document["submitted"] == len(set(answer.document["ids"])) == count
    first = command("task", "show", answer.document["ids"][0], "--store", store, "--json")
    assert first.document["payload"] == {"id": "0"}


def test_many_tasks_come_from_stdin(shell: Shell, store: str) -> None:
    answer = shell.run("submit-many", "clerk", "-", "--json", stdin='{"id": "1"}\n{"id": "2"}')
    assert (answer.code, answer.document["submitted"]) == (0, 2)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('{"id": 2}', "bad_payload"),
        ('{"id": "2"', "bad_json"),
        ('{"id": "2", "items": NaN}', "not_finite_number"),
    ],
)
def test_one_bad_line_is_named_and_nothing_is_stored(
    command: Command, store: str, tmp_path: Path, line: str, code: str
) -> None:
    (tmp_path / "orders.jsonl").write_text(f'{{"id": "1"}}\n\n{line}\n{{"id": "3"}}\n', encoding="utf-8")
    answer = command("submit-many", "clerk", "@orders.jsonl", "--store", store, "--json")
    assert (answer.code, answer.error["code"]) == (4, code)
    assert answer.error["message"].startswith("line 3: ")
    assert command("task", "list", "--store", store, "--json").document["items"] == []
