"""`endwell demo` as its user runs it: real processes, real signals, and a verdict that notices harm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from endwell.demo.agents import NAMESPACE, SINK
from endwell.demo.crew import clean_environment
from endwell.demo.records import Freeze, Kill, Table, find_shortcomings
from endwell.demo.run import QUICK, Plan, run
from endwell.demo.screen import PlainScreen
from endwell.runtime.clock import SystemClock
from endwell.runtime.processes import pid_alive
from endwell.settings import Settings, check, override
from tests.patience import PATIENCE_SECONDS

DEMO = (sys.executable, "-m", "endwell", "demo", "--json")


def run_demo(directory: Path, *options: str) -> dict[str, Any]:
    """The JSON document of a run that exited with 0."""
    done = subprocess.run([*DEMO, *options], cwd=directory, capture_output=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def assert_shows_what_it_must(document: dict[str, Any], tasks: int) -> None:
    assert document["submitted"] == tasks
    assert sum(document["ended"].values()) == tasks
    assert (document["lost"], document["stuck"], document["doubly_finished"]) == (0, 0, 0)
    assert sum(kill["held_lease"] for kill in document["kills"]) >= 5
    assert {kill["signal"] for kill in document["kills"]} == {"SIGKILL"}
    assert {kill["role"] for kill in document["kills"]} == {"worker", "pmo"}
    assert not any(kill["held_lease"] for kill in document["kills"] if kill["role"] == "pmo")
    assert document["reclaims"] >= 5
    assert document["refused_stale"] >= 1
    assert document["sink_calls"] >= tasks
    assert 0 < document["seconds"] < PATIENCE_SECONDS


class Kept:
    """The directory that a run left behind, read without any code of Endwell's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "demo.db"

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = apsw.Connection(str(self.store))
        try:
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()

    def copy(self, to: Path) -> Kept:
        """A copy to sabotage."""
        shutil.copytree(self.directory, to)
        return Kept(to)

    def read_again(self) -> Table:
        """The table that the demo's reader fills from it."""
        ((namespace,),) = self.rows("SELECT DISTINCT namespace FROM tasks")
        extra = {NAMESPACE: str(namespace), SINK: str(self.directory / "sink.jsonl")}
        env = clean_environment(f"sqlite:///{self.store}", QUICK, extra)
        argv = [sys.executable, "-m", "endwell.demo.reader", str(self.directory / "journal.jsonl")]
        answer = subprocess.run(argv, env=env, capture_output=True, check=True, timeout=PATIENCE_SECONDS)
        return msgspec.json.decode(answer.stdout, type=Table)


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Kept]:
    """One run on SQLite, kept for several tests."""
    directory = tmp_path_factory.mktemp("demo")
    document = run_demo(directory, "--tasks", "80", "--keep", "kept")
    return document, Kept(directory / "kept")


@pytest.mark.covers("S1.1")
def test_on_sqlite_every_task_ends_although_processes_are_killed(a_run: tuple[dict[str, Any], Kept]) -> None:
    assert_shows_what_it_must(a_run[0], 80)


@pytest.mark.covers("S1.1")
def test_on_postgresql_every_task_ends_although_processes_are_killed(
    tmp_path: Path, postgres_url: str
) -> None:
    document = run_demo(tmp_path, "--tasks", "60", "--store", postgres_url)
    assert_shows_what_it_must(document, 60)


def test_the_table_is_what_store_and_sink_say(a_run: tuple[dict[str, Any], Kept]) -> None:
    document, kept = a_run
    types = Counter(row[0] for row in kept.rows("SELECT type FROM events"))
    assert dict(kept.rows("SELECT status, count(*) FROM tasks GROUP BY status")) == document["ended"]
    assert types["task.succeeded"] == document["ended"]["succeeded"]
    assert types["task.reclaimed"] == document["reclaims"]
    assert types["write.refused"] == document["refused_stale"]
    assert len((kept.directory / "sink.jsonl").read_bytes().splitlines()) == document["sink_calls"]


def test_every_counted_victim_lost_its_tasks_by_a_reclaim(a_run: tuple[dict[str, Any], Kept]) -> None:
    document, kept = a_run
    holder = "json_extract(CAST(e.data AS TEXT), '$.session_id')"
    taken = f"SELECT count(*) FROM events e JOIN sessions s ON s.id = {holder}"
    for kill in document["kills"]:
        ((count,),) = kept.rows(f"{taken} WHERE e.type = 'task.reclaimed' AND s.pid = ?", kill["pid"])
        assert count >= kill["tasks_held"]
        assert kill["held_lease"] is (kill["tasks_held"] > 0)
        assert not pid_alive(kill["pid"])


def test_store_and_logs_can_be_read_only_by_their_owner(a_run: tuple[dict[str, Any], Kept]) -> None:
    _, kept = a_run
    assert kept.directory.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in kept.directory.iterdir() if path.stat().st_mode & 0o077} == set()


@pytest.mark.parametrize(
    ("harm", "field"),
    [
        ("DELETE FROM tasks WHERE rowid = (SELECT min(rowid) FROM tasks)", "lost"),
        ("DELETE FROM cards WHERE kind = 'task.deliverable'", "lost"),
        ("DELETE FROM events WHERE type = 'task.succeeded'", "log_problems"),
    ],
)
def test_the_reader_notices_harm_to_the_store(
    a_run: tuple[dict[str, Any], Kept], tmp_path: Path, harm: str, field: str
) -> None:
    sabotaged = a_run[1].copy(tmp_path / "copy")
    sabotaged.rows(harm)
    table = sabotaged.read_again()
    assert getattr(table, field) > 0
    assert find_shortcomings(table)


def test_the_reader_notices_a_result_without_work(a_run: tuple[dict[str, Any], Kept], tmp_path: Path) -> None:
    sabotaged = a_run[1].copy(tmp_path / "copy")
    ((attempt,),) = sabotaged.rows("SELECT attempt_id FROM events WHERE type = 'task.succeeded' LIMIT 1")
    sink = sabotaged.directory / "sink.jsonl"
    lines = sink.read_text().splitlines(keepends=True)
    sink.write_text("".join(line for line in lines if json.loads(line).get("attempt") != attempt))
    assert sabotaged.read_again().lost == 1


@pytest.mark.parametrize(("harm", "field"), [("doubled", "effects_duplicated"), ("missing", "lost")])
def test_the_reader_notices_an_effect_that_happened_twice_or_not_at_all(
    a_run: tuple[dict[str, Any], Kept], tmp_path: Path, harm: str, field: str
) -> None:
    sabotaged = a_run[1].copy(tmp_path / "copy")
    sink = sabotaged.directory / "sink.jsonl"
    lines = sink.read_text().splitlines(keepends=True)
    effect = next(line for line in lines if "effect" in json.loads(line))
    sink.write_text("".join([*lines, effect] if harm == "doubled" else [x for x in lines if x != effect]))
    table = sabotaged.read_again()
    assert getattr(table, field) == 1
    assert find_shortcomings(table)


def test_an_interrupted_demo_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen([*DEMO], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert demo.stderr is not None
    for line in demo.stderr:
        if b"kill -9" in line:
            break
    children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 130
    assert children
    assert not any(pid_alive(int(child)) for child in children)
    assert list(tmp_path.glob("endwell-demo-*")) == []


async def test_a_run_that_does_not_come_to_rest_in_time_ends_and_is_no_success(tmp_path: Path) -> None:
    plan = Plan(
        url=f"sqlite:///{tmp_path}/demo.db",
        namespace="demo",
        directory=tmp_path,
        tasks=60,
        seed=1,
        limit_seconds=4.0,
    )
    table = await run(plan, PlainScreen(SystemClock(), 60, on_stderr=True))
    assert find_shortcomings(table)


def test_the_demos_own_settings_are_legal() -> None:
    check(override(Settings(), QUICK, source="demo"))


def a_kill(held: int) -> Kill:
    return Kill(pid=1, signal="SIGKILL", at="", held_lease=held > 0, role="worker", name="w", tasks_held=held)


def a_good_table(**changes: Any) -> Table:
    frozen = Freeze(pid=2, at="", woken_at="", name="w", tasks_held=1, refused=1)
    good: dict[str, Any] = {
        "submitted": 200,
        "ended": {"succeeded": 200},
        "kills": [a_kill(2)] * 5,
        "freezes": [frozen],
        "reclaims": 5,
        "refused_stale": 1,
        "retries": 0,
        "sink_calls": 400,
        "effects": 200,
        "effects_duplicated": 0,
        "effects_settled": 1,
        "lost": 0,
        "stuck": 0,
        "doubly_finished": 0,
        "log_problems": 0,
    }
    return Table(**{**good, **changes})


def test_a_run_that_shows_everything_is_a_success() -> None:
    assert find_shortcomings(a_good_table()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"lost": 1},
        {"stuck": 1},
        {"doubly_finished": 1},
        {"effects_duplicated": 1},
        {"effects": 0},
        {"log_problems": 1},
        {"kills": [a_kill(2)] * 4},
        {"kills": [a_kill(2)] * 4 + [a_kill(0)] * 3},
        {"reclaims": 4},
        {"refused_stale": 0},
        {"submitted": 0},
    ],
)
def test_a_run_that_does_not_show_everything_is_no_success(changes: dict[str, Any]) -> None:
    assert len(find_shortcomings(a_good_table(**changes))) == 1
