"""Commands about waits: approvals, tools, signals; and the tree of tasks."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endwell import Endwell, TaskFailed
from endwell.runtime.base import Runtime
from tests.cli.conftest import Command, _app
from tests.cli.shell import SECONDS


@pytest.fixture
def working(store: str, tmp_path: Path) -> Iterator[Endwell]:
    """The app of the directory, with a worker and a PMO."""
    with _app(tmp_path).running() as app:
        yield app


def suspended(app: Endwell, agent: str, payload: Any = None) -> str:
    """A task that waits for something."""
    handle = app.submit(agent, payload)
    runtime = Runtime.system()
    give_up_at = runtime.clock.monotonic() + SECONDS
    while handle.status() != "suspended":
        assert runtime.clock.monotonic() < give_up_at, handle.why()
        runtime.block(0.01)
    return handle.id


@pytest.mark.covers("S4.55")
def test_an_approval_is_listed_shown_and_given(command: Command, working: Endwell, store: str) -> None:
    task = suspended(working, "buyer", 5)
    (item,) = command("approval", "list", "--store", store, "--json").document["items"]
    assert (item["task_id"], item["question"], item["status"]) == (task, "Buy it?", "open")
    assert (item["by"], item["quorum"]) == (["ada", "bob"], 1)
    shown = command("approval", "show", item["id"], "--store", store, "--json").document
    assert shown["shown"] == {"price": 5}
    assert "Buy it?" in command("approval", "show", item["id"], "--store", store).out

    wrong = command("approval", "approve", item["id"], "--as", "mallory", "--store", store, "--json")
    assert (wrong.code, wrong.error["code"]) == (4, "not_an_approver")
    changed = command(
        "approval", "approve", item["id"], "--as", "ada", "--shown", "0", "--store", store, "--json"
    )
    assert (changed.code, changed.error["code"]) == (4, "approval_changed")
    done = command(
        "approval", "approve", item["id"], "--as", "ada", "--shown", shown["shown_hash"], "--store", store
    )
    assert (done.code, done.out.strip()) == (0, f"approval {item['id']} is approved by ada")
    assert working.task(task).result(SECONDS) == "bought"
    assert command("approval", "list", "--store", store).out.strip() == "no approval is open"
    (decided,) = command("approval", "list", "--all", "--task", task, "--store", store, "--json").document[
        "items"
    ]
    assert (decided["status"], decided["decided_by"]) == ("approved", "ada")
    history = command("task", "history", task, "--store", store, "--json").document["items"]
    (approved,) = [event for event in history if event["type"] == "approval.approved"]
    assert approved["actor"] == "ada"


def test_the_command_that_why_proposes_can_be_pasted_into_a_shell(
    command: Command, working: Endwell, store: str
) -> None:
    """Ids of waits have brackets and hashes in them."""
    task = suspended(working, "asker")
    proposed = _proposed(command, "tool answer", "why", task, "--store", store)
    _, *words = shlex.split(proposed)
    assert words[-3:] == ["JSON", "--store", store], "it acts where it was asked about"
    assert subprocess.run(["sh", "-n", "-c", proposed], check=False).returncode == 0
    assert command(*("7" if word == "JSON" else word for word in words)).code == 0
    assert working.task(task).result(SECONDS) == 7


def _proposed(command: Command, what: str, *asked: str) -> str:
    lines = command(*asked).out.splitlines()
    (line,) = [line for line in lines[lines.index("you can") :] if f"endwell {what}" in line]
    return line.strip()


@pytest.mark.parametrize("agent", ["guarded", "buyer"])
def test_why_proposes_to_decide_as_a_named_approver(
    command: Command, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    """One approval is before the task starts, the other inside its turn."""
    monkeypatch.setenv("ENDWELL__APPROVAL__BY", '["ada", "bob"]')
    with _app(tmp_path).running() as app:
        task = app.submit(agent, 5).id if agent == "guarded" else suspended(app, agent, 5)
        (wait,) = command("why", task, "--store", store, "--json").document["waiting_for"]
        assert (wait["kind"], wait["by"]) == ("approval", ["ada", "bob"])
        assert " by ada, bob until " in command("why", task, "--store", store).out
        _, *words = shlex.split(_proposed(command, "approval approve", "why", task, "--store", store))
        assert command(*words).code == 0
        app.task(task).result(SECONDS)


def test_the_draft_of_a_failed_task_is_shown(command: Command, working: Endwell, store: str) -> None:
    handle = working.submit("drafter")
    with pytest.raises(TaskFailed):
        handle.result(SECONDS)
    assert '\ndraft\n{\n  "half": 1\n}\n' in command("task", "show", handle.id, "--store", store).out


def test_why_fits_on_one_screen_for_a_task_with_many_waits(
    command: Command, working: Endwell, store: str
) -> None:
    task = suspended(working, "crowd")
    said = command("why", task, "--store", store).out
    assert said.count("tool oracle") == 5
    assert "; and 35 more\n" in said
    assert len(said.splitlines()) <= 24
    assert len(command("why", task, "--store", store, "--json").document["waiting_for"]) == 40


def test_why_proposes_commands_for_its_own_namespace(command: Command, store: str) -> None:
    where = ("--namespace", "other", "--store", store)
    other = Endwell(store, namespace="other")
    other.agent("clerk")(lambda ctx, payload: payload)
    with other.running():
        task = other.submit("clerk", 1, delay=3600).id
    _, *words = shlex.split(_proposed(command, "task cancel", "why", task, *where))
    assert command(*words).code == 0
    assert command("task", "show", task, *where, "--json").document["status"] == "cancelled"


@pytest.mark.covers("S4.56", "T20")
def test_an_approval_is_declined_once(command: Command, working: Endwell, store: str) -> None:
    task = working.submit("guarded", 5).id
    done = command("approval", "reject", task, "--as", "ada", "--store", store, "--json")
    assert (done.code, done.document["status"]) == (0, "rejected")
    again = command("approval", "approve", task, "--as", "ada", "--store", store, "--json")
    assert (again.code, again.error["code"]) == (4, "task_ended")
    found = command("task", "show", task, "--store", store, "--json").document
    assert (found["status"], found["reason"], found["dead_letter"]) == ("failed", "approval_rejected", None)
    history = command("task", "history", task, "--store", store, "--json").document["items"]
    assert [event["type"] for event in history].count("approval.rejected") == 1


@pytest.mark.parametrize("words", [("approve",), ("reject",), ("show",)])
def test_an_unknown_approval_exits_with_3(command: Command, store: str, words: tuple[str, ...]) -> None:
    answer = command("approval", *words, "nothing", "--store", store, "--json")
    assert (answer.code, answer.error["code"]) == (3, "no_such_approval")


def test_a_tool_call_is_listed_and_answered(command: Command, working: Endwell, store: str) -> None:
    task = suspended(working, "asker")
    (call,) = command("tool", "list", "--task", task, "--store", store, "--json").document["items"]
    assert (call["task_id"], call["tool"]) == (task, "oracle")
    assert "oracle" in command("tool", "list", "--store", store).out
    typed = f"endwell tool answer '{call['call_id']}' JSON"
    assert typed in command("why", task, "--store", store).out, "it can be pasted into a shell"
    done = command("tool", "answer", call["call_id"], '{"a": 1}', "--store", store, "--json")
    assert (done.code, done.document["outcome"]) == (0, "applied")
    assert working.task(task).result(SECONDS) == {"a": 1}
    late = command("tool", "answer", call["call_id"], "2", "--store", store, "--json")
    assert (late.code, late.document["outcome"]) == (0, "late")
    assert command("tool", "list", "--store", store).out.strip() == "no open calls"


def test_a_tool_call_can_be_answered_with_a_failure(command: Command, working: Endwell, store: str) -> None:
    task = suspended(working, "asker")
    (call,) = command("tool", "list", "--store", store, "--json").document["items"]
    command("tool", "answer", call["call_id"], '"no luck"', "--fail", "--store", store)
    with pytest.raises(TaskFailed, match="no luck"):
        working.task(task).result(SECONDS)
    error = command("task", "show", task, "--store", store, "--json").document["error"]
    assert error["code"] == "tool_failed"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("nothing.s.1:()x#1", "1"), (3, "no_such_call")),
        (("nothing", "1"), (3, "no_such_call")),
        (("nothing.s.1:()x#1", "{"), (4, "bad_json")),
    ],
)
def test_a_bad_answer_is_refused(
    command: Command, store: str, words: tuple[str, ...], code: tuple[int, str]
) -> None:
    answer = command("tool", "answer", *words, "--store", store, "--json")
    assert (answer.code, answer.error["code"]) == code


def test_a_signal_is_sent(command: Command, working: Endwell, store: str) -> None:
    task = suspended(working, "listener")
    bad = command("signal", task, "Not A Name", "1", "--store", store, "--json")
    assert (bad.code, bad.error["code"]) == (4, "bad_name")
    done = command("signal", task, "go", '{"n": 1}', "--store", store, "--json")
    assert (done.code, done.document["task_id"]) == (0, task)
    assert working.task(task).result(SECONDS) == {"n": 1}
    ended = command("signal", task, "go", "--store", store, "--json")
    assert (ended.code, ended.error["code"]) == (4, "task_ended")
    unknown = command("signal", "nothing", "go", "--store", store, "--json")
    assert (unknown.code, unknown.error["code"]) == (3, "no_such_task")


def test_a_tree_shows_parents_and_children(command: Command, working: Endwell, store: str) -> None:
    handle = working.submit("boss")
    assert handle.result(SECONDS) == 3
    found = command("task", "tree", handle.id, "--store", store, "--json").document
    assert (found["id"], found["status"]) == (handle.id, "succeeded")
    (child,) = found["children"]
    assert (child["agent"], child["parent_call"]) == ("clerk", f"{handle.id}.s.1:()clerk#1")
    lines = command("task", "tree", handle.id, "--store", store).out.splitlines()
    assert lines == [f"{handle.id}  boss  succeeded", f"  {child['id']}  clerk  succeeded"]
    assert command("task", "tree", "nothing", "--store", store).code == 3
