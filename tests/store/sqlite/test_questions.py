"""Short questions are answered on the caller's event loop, and do not hold up other tasks."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import apsw

from endwell.policy.limits import Limits
from endwell.runtime.base import Runtime
from endwell.store.sqlite.statements import QUERIES
from endwell.store.sqlite.store import SqliteStore

TICKS = (
    "lapsed_resumes",
    "pending_resumes",
    "answers_waiting",
    "due_waits",
    "undelivered",
    "processing_since",
    "expired_claims",
    "next_wait",
    "last_tick",
    "offered_to_some",
    "ready_for_some",
    "next_start_of_some",
    "due",
    "lapsed_sessions",
    "long_ready",
    "pending_since",
    "held_tasks",
    "next_start",
)
"""What workers and supervisors ask at each tick."""
HISTORY = "tasks|agent_inbox|cards|events|turn_waiting_tools|turn_resume_ledger"
WHOLE_HISTORY = rf"(_autoindex_({HISTORY})_1|inbox_once|PRIMARY KEY) \(namespace=\?\)$|^SCAN ({HISTORY})\b"


async def test_asking_in_a_tight_loop_lets_others_run(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db", limits=Limits(), runtime=Runtime.system())
    await store.open()
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(done.set)
    try:
        for _ in range(1_000):
            assert await store.find_task("default", "none") is None
            if done.is_set():
                break
        assert done.is_set()
    finally:
        await store.close()


async def test_dead_letters_are_followed_by_an_index_and_never_sorted(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    store = SqliteStore(path, limits=Limits(), runtime=Runtime.system())
    await store.open()
    await store.close()
    connection = apsw.Connection(str(path))
    question = QUERIES["letters_changed"]
    rows = connection.execute(f"EXPLAIN QUERY PLAN {question}", ("default", 0, "", 10)).fetchall()
    connection.close()
    plan = [str(row[3]) for row in rows]
    assert len(plan) == 1, plan
    assert "USING INDEX dead_letters_changed" in plan[0]


async def test_no_question_of_a_tick_reads_all_there_ever_was(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    store = SqliteStore(path, limits=Limits(), runtime=Runtime.system())
    await store.open()
    await store.close()
    connection = apsw.Connection(str(path))
    for name in TICKS:
        nothing = [None] * len(set(re.findall(r"\?\d+", QUERIES[name])))
        rows = connection.execute(f"EXPLAIN QUERY PLAN {QUERIES[name]}", nothing).fetchall()
        read_whole = [row[3] for row in rows if re.search(WHOLE_HISTORY, str(row[3]))]
        assert not read_whole, f"{name}: {read_whole}"
    connection.close()
