"""The door's statements use indexes, for tables of any size."""

from __future__ import annotations

import re

import asyncpg
import pytest

from endwell.model.card import Card
from endwell.model.message import MESSAGE_FIELDS
from endwell.model.session import SESSION_FIELDS
from endwell.model.task import FIELDS
from endwell.store.log import EVENT_FIELDS
from endwell.store.postgres.connection import COMMITTING
from endwell.store.postgres.row_writer import compose_statements
from endwell.store.postgres.statements import QUERIES, join_queries
from endwell.store.postgres.store import PostgresStore
from endwell.store.rows import Writes
from tests.store.world import PostgresDatabase, World

READS = (
    "letters_changed",
    "see_tasks",
    "lock_tasks",
    "tasks_of_keys",
    "lock_sessions",
    "lock_sessions_with_held",
    "offers",
    "holders",
    "offered_to_some",
    "ready_for_some",
    "next_start_of_some",
    "next_start",
    "long_ready",
    "expired_claims",
    *sorted(QUERIES.marked["steady"] - {"clock", "log_end"}),
)
WRITES = ("move_tasks", "set_slots", "mark_inbox", "close_dead_letter", "close_approval", "answer_wait")


async def test_no_statement_of_the_door_reads_a_whole_table(postgres_database: PostgresDatabase) -> None:
    """Planned on empty tables, where the planner would choose to: the plan is kept when they grow."""
    world = World(postgres_database)
    await world.open()
    await world.close()
    connection = await asyncpg.connect(postgres_database.url, server_settings=COMMITTING)
    for name in READS + WRITES:
        await connection.execute(f"PREPARE {name} AS {QUERIES[name]}")
        nothing = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", QUERIES[name]))))
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE {name}({nothing})"))
        assert "Index" in plan, name
        assert "Seq Scan" not in plan, name
        for index, condition in re.findall(r"using (tasks_\w+) .*\n\s+Index Cond: (.*)", plan):
            narrow = {"tasks_ready": "agent", "tasks_pkey": "id"}.get(index, "namespace")
            assert re.search(rf"\b{narrow}\b", condition), f"{name} reads a whole backlog by {index}"
    await connection.close()


async def test_looking_for_answers_does_not_read_every_message_there_ever_was(
    postgres_database: PostgresDatabase,
) -> None:
    world = World(postgres_database)
    await world.open()
    await world.close()
    connection = await asyncpg.connect(postgres_database.url, server_settings=COMMITTING)
    await connection.execute(f"PREPARE looks AS {QUERIES['answers_waiting']}")
    plan = "\n".join(row[0] for row in await connection.fetch("EXPLAIN EXECUTE looks(NULL, NULL, NULL)"))
    await connection.close()
    conditions = re.findall(r"on agent_inbox .*\n\s+Index Cond: (.*)", plan)
    assert conditions, plan
    assert all("message_type" in condition for condition in conditions), plan


async def test_a_round_of_feeding_a_stream_asks_nothing_that_is_planned_anew(
    postgres_database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such plans follow from statistics that a young or busy table does not have: they read all of it."""
    world = World(postgres_database)
    await world.open()
    store, planned = world.store, list[str]()
    assert isinstance(store, PostgresStore)

    async def noted(name: str, *_: object) -> list[object]:
        planned.append(name)
        return []

    monkeypatch.setattr(store._questions, "ask", noted)
    await store.stream_demand("default", await store.now())
    await store.ready_turns("default", "coder", 10)
    await store.epochs_of_queued("default", ["t"])
    await store.dispatched_offers("default", "coder", 10)
    monkeypatch.undo()
    await world.close()

    assert planned == []


@pytest.mark.parametrize(
    ("row_type", "fields"),
    [
        ("task_row", FIELDS),
        ("event_row", EVENT_FIELDS),
        ("card_row", Card.__struct_fields__),
        ("session_row", SESSION_FIELDS),
        ("message_row", MESSAGE_FIELDS),
    ],
)
async def test_the_row_types_are_those_of_the_model(
    postgres_database: PostgresDatabase, row_type: str, fields: tuple[str, ...]
) -> None:
    world = World(postgres_database)
    await world.open()
    rows = await postgres_database.sql(
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{row_type}'::regclass ORDER BY attnum"
    )
    assert tuple(row[0] for row in rows) == fields
    await world.close()


def test_the_pieces_of_a_batch_become_one_statement_with_their_parameters_in_order() -> None:
    sql = join_queries(("move_tasks", "add_events", "close_dead_letter"))
    assert "unnest($1::task_row[], $2::bigint[])" in sql
    assert "unnest($3::event_row[])" in sql
    assert "unnest($4::text[], $5::bigint[], $6::text[], $7::text[])" in sql
    assert sql.endswith("SELECT endwell_require_moved(count(*), $8) FROM move_tasks")


def test_nothing_to_write_is_no_statement() -> None:
    assert compose_statements(Writes(), "w") == []
