"""Dead letters: read, replayed after repair, abandoned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Stock
from tests.cli.shell import SECONDS, Shell


def test_a_dead_letter_shows_what_was_asked_and_what_went_wrong(
    command: Command, stock: Stock, store: str
) -> None:
    (item,) = command("dlq", "list", "--store", store, "--json").document["items"]
    assert (item["task_id"], item["agent"], item["status"]) == (stock.failed, "picky", "open")
    letter = command("dlq", "show", stock.failed, "--store", store, "--json").document
    assert letter["payload"]["value"] == -1
    assert letter["error"]["type"] == "ValueError"
    assert letter["retry_count"] == 1
    assert letter["failed_at"]


@pytest.mark.covers("S4.46")
def test_a_dead_letter_is_replayed_after_repair_and_succeeds(shell: Shell, stock: Stock) -> None:
    with shell.serving("up"):
        new = shell.run("dlq", "replay", stock.failed, "--set", "value=7", "--json").document
        assert new["replay_of"] == stock.failed
        answer = shell.run("submit", "picky", '{"value": 1}', "--wait", "--json")  # served after the replay
        assert answer.code == 0
    done = shell.run("task", "show", new["id"], "--json").document
    assert (done["status"], done["result"]) == ("succeeded", 7)
    old = shell.run("dlq", "show", stock.failed, "--json").document
    assert (old["status"], old["superseded_by"]) == ("replayed", new["id"])


@pytest.mark.covers("S4.46")
def test_replaying_twice_makes_one_new_task(command: Command, stock: Stock, store: str) -> None:
    assert command("dlq", "replay", stock.failed, "--store", store).code == 0
    again = command("dlq", "replay", stock.failed, "--store", store, "--json")
    assert (again.code, again.error["code"]) == (4, "dead_letter_closed")
    assert len(command("task", "list", "--store", store, "--json").document["items"]) == 3


def test_a_repair_reaches_into_lists_and_objects(command: Command, stock: Stock, store: str) -> None:
    words = ("--set", "notes[1].b=[1,2]", "--set", 'notes[0]="x=y"', "--set", "city=Berlin")
    new = command("dlq", "replay", stock.failed, *words, "--store", store, "--json").document
    found = command("task", "show", new["id"], "--store", store, "--json").document
    assert found["payload"] == {"value": -1, "notes": ["x=y", {"b": [1, 2]}], "city": "Berlin"}


def test_a_payload_can_be_replaced_from_a_file(
    command: Command, stock: Stock, store: str, tmp_path: Path
) -> None:
    (tmp_path / "new.json").write_text('{"value": 3}', encoding="utf-8")
    new = command("dlq", "replay", stock.failed, "--payload", "new.json", "--store", store, "--json").document
    assert command("task", "show", new["id"], "--store", store, "--json").document["payload"] == {"value": 3}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--set", "notes[5]=1"), "bad_path"),
        (("--set", "value.deeper=1"), "bad_path"),
        (("--set", "nonsense"), "bad_path"),
        (("--set", " =5"), "bad_path"),
        (("--set", "value={"), "bad_json"),
        (("--set", "value=NaN"), "not_finite_number"),
    ],
)
def test_a_repair_that_cannot_be_made_leaves_the_dead_letter_open(
    command: Command, stock: Stock, store: str, words: tuple[str, ...], code: str
) -> None:
    answer = command("dlq", "replay", stock.failed, *words, "--store", store, "--json")
    assert (answer.code, answer.error["code"]) == (4, code)
    assert command("dlq", "show", stock.failed, "--store", store, "--json").document["status"] == "open"


def test_a_repaired_payload_must_be_what_the_agent_takes(
    command: Command, stock: Stock, store: str, tmp_path: Path
) -> None:
    (tmp_path / "new.json").write_text("[1]", encoding="utf-8")
    answer = command("dlq", "replay", stock.failed, "--payload", "new.json", "--store", store, "--json")
    assert (answer.code, answer.error["code"], answer.error["field"]) == (4, "bad_payload", "payload")


def test_many_are_replayed_only_with_yes(shell: Shell, stock: Stock) -> None:
    refused = shell.run("dlq", "replay", "--all", "--json")
    assert (refused.code, refused.error["field"]) == (2, "yes")
    (letter,) = shell.run("dlq", "list", "--json").document["items"]
    done = shell.run("dlq", "replay", "--fingerprint", letter["fingerprint"], "--yes", "--json").document
    assert [item["replay_of"] for item in done["items"]] == [stock.failed]
    assert shell.run("dlq", "list", "--json").document["items"] == []
    assert len(shell.run("dlq", "list", "--all", "--json").document["items"]) == 1


def test_a_refused_replay_does_not_hold_up_the_others(command: Command, stock: Stock, store: str) -> None:
    answer = command("dlq", "replay", "nothing", stock.failed, "--store", store, "--json")
    assert answer.code == 4
    assert [item["replay_of"] for item in answer.document["items"]] == [stock.failed]
    assert [item["task_id"] for item in answer.document["refused"]] == ["nothing"]


@pytest.mark.covers("S4.47")
def test_an_abandoned_dead_letter_is_closed_for_good(command: Command, stock: Stock, store: str) -> None:
    done = command("dlq", "abandon", stock.failed, "--note", "customer left", "--store", store, "--json")
    assert (done.code, done.document["dead_letter"]) == (0, "abandoned")
    assert command("dlq", "list", "--store", store, "--json").document["items"] == []
    assert command("dlq", "replay", stock.failed, "--store", store).code == 4
    assert command("dlq", "abandon", stock.failed, "--store", store).code == 4
    last = command("task", "history", stock.failed, "--store", store, "--json").document["items"][-1]
    assert (last["type"], last["data"]["note"]) == ("dlq.abandoned", "customer left")


@pytest.mark.covers("S4.46", "S4.47")
@pytest.mark.parametrize(("words", "status"), [((), "replayed"), (("--abandon",), "abandoned")])
def test_the_dlq_replay_tool_replays_and_abandons(
    shell: Shell, stock: Stock, words: tuple[str, ...], status: str
) -> None:
    call = "from endwell.__main__ import dlq_replay; dlq_replay()"
    done = subprocess.run(
        [sys.executable, "-c", call, *words, stock.failed, "--json"],
        cwd=shell.directory,
        env=shell.environment,
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    assert json.loads(done.stdout)["agent"] == "picky"
    assert shell.run("dlq", "show", stock.failed, "--json").document["status"] == status
