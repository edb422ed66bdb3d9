"""Services: ready, drained at the first signal, gone at the second."""

from __future__ import annotations

from subprocess import STDOUT

import pytest

from endwell.runtime.child_process import ChildProcess
from tests.cli.conftest import Command
from tests.cli.shell import SECONDS, Shell


@pytest.mark.parametrize("service", ["worker", "pmo", "up"])
def test_an_idle_service_exits_at_the_first_signal(shell: Shell, service: str) -> None:
    with shell.serving(service) as child:
        child.terminate()
        assert child.wait(SECONDS) == 0


def test_a_pmo_needs_no_app(shell: Shell) -> None:
    (shell.directory / "app.py").unlink()
    with shell.serving("pmo", "--store", "sqlite:///elsewhere.db", "--name", "boss"):
        assert (shell.directory / "elsewhere.db").exists()


def test_a_draining_worker_finishes_running_turns(shell: Shell) -> None:
    with shell.serving("worker") as child:
        task = shell.run("submit", "slow", "1.0", "--json").document
        assert child.read_line(SECONDS) == "started"
        child.terminate()
        assert child.wait(SECONDS) == 0
    done = shell.run("task", "show", task["id"], "--json").document
    assert (done["status"], done["result"]) == ("succeeded", "done")


def test_a_draining_worker_hands_back_unfinished_turns_at_no_cost(shell: Shell) -> None:
    with shell.serving("worker", environment={"ENDWELL__WORKER__DRAIN_SECONDS": "0.1"}) as child:
        task = shell.run("submit", "slow", "600", "--json").document
        assert child.read_line(SECONDS) == "started"
        child.terminate()
        assert child.wait(SECONDS) == 0
    found = shell.run("task", "show", task["id"], "--json").document
    assert (found["status"], found["retry_count"], found["crash_count"]) == ("queued", 0, 0)
    types = [event["type"] for event in shell.run("task", "history", task["id"], "--json").document["items"]]
    assert types[-1] == "task.handed_back"


def test_a_second_signal_ends_a_draining_worker_at_once(shell: Shell) -> None:
    with shell.serving("worker", errors=STDOUT) as child:
        task = shell.run("submit", "slow", "600", "--json").document
        says(child, "started")
        child.terminate()
        says(child, "a second signal ends at once")
        child.terminate()
        assert child.wait(SECONDS) == 130
    assert shell.run("task", "show", task["id"], "--json").document["status"] == "running"


def says(child: ChildProcess, words: str) -> None:
    """Whether the log says so; after some seconds a worker also warns that no PMO ticks."""
    while words not in (line := child.read_line(SECONDS) or ""):
        assert line, f"it never said {words!r}"


@pytest.mark.covers("S4.48", "S4.49", "S4.50", "S4.52")
def test_a_killed_workers_task_is_reclaimed_and_finished_by_another(shell: Shell) -> None:
    with shell.serving("pmo"):
        with shell.serving("worker", "--agents", "once") as victim:
            task = shell.run("submit", "once", '"marker"', "--json").document
            assert victim.read_line(SECONDS) == "started"
            held = shell.run("why", task["id"], "--json").document
            assert held["holder"]["pid"] == victim.pid
            victim.kill()
            victim.wait(SECONDS)
        with shell.serving("worker", "--concurrency", "2", "--name", "heir"):
            again = shell.run("submit", "once", '"marker"', "--key", task["id"], "--wait", "--json")
    done = again.document
    assert (again.code, done["id"], done["result"], done["crash_count"]) == (0, task["id"], "second", 1)
    events = [line["type"] for line in shell.run("events", "tail", "--json").lines]
    for type_ in ("task.created", "task.claimed", "task.reclaimed", "task.succeeded"):
        assert type_ in events


@pytest.mark.parametrize(
    ("source", "target", "part"),
    [
        (None, "missing:app", "no module missing"),
        ("x = 1", "broken:app", "does not exist"),
        ("app = 5", "broken:app", "is not an Endwell object"),
        ("import nonexistent_thing", "broken:app", "nonexistent_thing"),
        ("1 / 0", "broken:app", "ZeroDivisionError"),
        ("raise SystemExit(3)", "broken:app", "SystemExit"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_refused_with_the_reason(
    shell: Shell, source: str | None, target: str, part: str
) -> None:
    if source is not None:
        (shell.directory / "broken.py").write_text(source, encoding="utf-8")
    answer = shell.run("worker", "--app", target, "--json")
    assert (answer.code, answer.error["field"]) == (2, "app")
    assert part in answer.error["message"]
    assert "Traceback" not in answer.err


def test_the_settings_file_may_name_the_app(shell: Shell) -> None:
    (shell.directory / "app.py").rename(shell.directory / "other.py")
    (shell.directory / "endwell.toml").write_text('[app]\ntarget = "other:app"\n', encoding="utf-8")
    with shell.serving("up"):
        answer = shell.run("submit", "clerk", '{"id": "1"}', "--wait", "--json")
    assert answer.document["result"] == 3
    assert (shell.directory / "store.db").exists()


def test_the_command_line_overrides_the_store_in_the_code(shell: Shell) -> None:
    with shell.serving("up", "--store", "sqlite:///other.db"):
        answer = shell.run(
            "submit", "clerk", '{"id": "1"}', "--wait", "--json", "--store", "sqlite:///other.db"
        )
    assert answer.code == 0
    assert not (shell.directory / "store.db").exists()


def test_an_agent_that_the_app_does_not_have_is_refused(shell: Shell) -> None:
    answer = shell.run("worker", "--agents", "clerk,cook", "--json")
    assert (answer.code, answer.error["field"]) == (2, "agents")
    assert "clerk" in (answer.error["hint"] or "")


def test_contradictory_settings_are_refused_at_start(shell: Shell) -> None:
    environment = {"ENDWELL__WORKER__HEARTBEAT_SECONDS": "20"}
    answer = shell.run("worker", "--json", environment=environment)
    assert (answer.code, answer.error["code"]) == (2, "bad_setting")
    assert "half" in answer.error["message"]


def test_bounds_are_read_off_settings_and_clocks(shell: Shell, command: Command) -> None:
    environment = {"ENDWELL__WORKER__LEASE_SECONDS": "60", "ENDWELL__TASK__DEADLINE_SECONDS": "100"}
    items = shell.run("bounds", "--json", environment=environment).document["items"]
    clerk = next(item for item in items if item["agent"] == "clerk")
    picky = next(item for item in items if item["agent"] == "picky")
    assert (clerk["ends_by_seconds"], clerk["dead_worker_noticed_seconds"]) == (100, 65)
    assert (clerk["max_executions_by_failure"], picky["max_executions_by_failure"]) == (4, 1)
    assert [rule["rule"] for rule in clerk["statuses"]["running"]] == ["ends_by", "guard", "reap"]
    assert not (shell.directory / "store.db").exists()
