"""`endwell bench`: it gives every figure, and drops figures whose check fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg

from endwell.bench import bare_postgres, bare_sqlite
from endwell.bench.checks import check
from endwell.bench.place import Ground
from endwell.bench.rows import FLOORS, Row, against_bare, against_floor
from endwell.model.commands import Cancel
from endwell.runtime.base import Runtime
from tests.patience import PATIENCE_SECONDS

ALWAYS = {
    "submit_one_by_one",
    "submit_bulk",
    "drain_1_worker",
    "drain_2_workers",
    "idle_latency_p50",
    "idle_latency_p99",
    "idle_cpu_worker",
    "idle_cpu_pmo",
    "idle_statements_worker",
    "idle_statements_pmo",
}


def run_bench(directory: Path, *options: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "endwell", "bench", "--quick", "--json", *options]
    done = subprocess.run(argv, cwd=directory, capture_output=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def assert_is_whole(document: dict[str, Any], store: str) -> None:
    assert {"machine", "settings", "rows"} <= set(document)
    rows = document["rows"]
    assert {row["store"] for row in rows} == {store}
    assert all(set(row) == {"name", "store", "value", "unit", "n"} for row in rows)
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    assert set(names) >= ALWAYS
    assert all(row["value"] > 0 for row in rows if row["unit"] in ("tasks/s", "ms", "MiB"))
    assert document["dropped"] == 0


def test_on_sqlite_every_figure_is_there_at_full_durability(tmp_path: Path) -> None:
    document = run_bench(tmp_path)
    assert_is_whole(document, "sqlite")
    assert document["settings"]["synchronous"] == 2
    assert document["settings"]["journal_mode"] == "wal"
    assert "bare_drain_1_worker" in {row["name"] for row in document["rows"]}


def test_on_postgresql_every_figure_is_there(tmp_path: Path, postgres_url: str) -> None:
    document = run_bench(tmp_path, "--store", postgres_url)
    assert_is_whole(document, "postgresql")
    assert "fsync" in document["settings"]
    assert "bare_drain_1_worker" in {row["name"] for row in document["rows"]}


def test_one_row_can_be_measured_alone_and_an_unknown_row_is_refused(tmp_path: Path) -> None:
    document = run_bench(tmp_path, "--only", "submit_one_by_one")
    assert [row["name"] for row in document["rows"]] == ["submit_one_by_one"]
    argv = [sys.executable, "-m", "endwell", "bench", "--only", "drain_3_workers"]
    refused = subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=PATIENCE_SECONDS)
    assert refused.returncode == 2
    assert b"no such row: drain_3_workers" in refused.stderr


async def test_a_drain_with_a_missing_result_has_problems(tmp_path: Path) -> None:
    async with Ground(Runtime.system(), tmp_path, None).make_place() as place:
        await place.submit(20)
        cancelled = Cancel(
            command_id=place.runtime.ids.new(),
            namespace=place.namespace,
            actor="test",
            task_id=list(place.expected)[7],
            reason="sabotage",
        )
        await place.node.store.commit_one(cancelled)
        await place.start("worker")
        await place.wait_drained()
        await place.stop()
        checked = await check(place)
    assert checked.tasks == 20
    assert len(checked.problems) == 1
    assert list(place.expected)[7] in checked.problems[0]


async def test_a_place_with_a_missing_task_has_problems(tmp_path: Path) -> None:
    async with Ground(Runtime.system(), tmp_path, None).make_place() as place:
        await place.submit(3)
        await place.start("worker")
        await place.wait_drained()
        await place.stop()
        place.expected["missing"] = 3
        checked = await check(place)
    assert checked.problems == ["3 tasks where 4 were submitted"]


def test_a_rate_and_a_latency_are_both_better_above_one() -> None:
    floors = FLOORS["sqlite"]
    fast = Row("drain_1_worker", "sqlite", 2 * floors["drain_1_worker"], "tasks/s", 1)
    prompt = Row("idle_latency_p50", "sqlite", floors["idle_latency_p50"] / 2, "ms", 1)
    assert against_floor(fast) == 2
    assert against_floor(prompt) == 2


def test_the_bare_loop_ends_every_job(tmp_path: Path) -> None:
    ticks = iter(range(100))
    found = bare_sqlite.measure_rates(
        tmp_path / "bare.db", lambda: float(next(ticks)), one_by_one=3, bulk=600
    )
    assert found == {"submit_one_by_one": (3, 3), "submit_bulk": (600, 600), "drain_1_worker": (603, 603)}


async def test_the_bare_loop_on_postgresql_ends_every_job_too_and_leaves_nothing(postgres_url: str) -> None:
    ticks = iter(range(100))
    counts = {"one_by_one": 3, "bulk": 600}
    found = await bare_postgres.measure_rates(postgres_url, lambda: float(next(ticks)), **counts)
    assert found == {"submit_one_by_one": (3, 3), "submit_bulk": (600, 600), "drain_1_worker": (603, 603)}
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT to_regclass('endwell_bare')") is None
    await connection.close()


def test_shares_are_of_the_bare_loop() -> None:
    limit = Row("bare_submit_bulk", "sqlite", 400, "tasks/s", 1)
    ours = Row("submit_bulk", "sqlite", 100, "tasks/s", 1)
    assert against_bare(ours, [ours, limit]) == 0.25
