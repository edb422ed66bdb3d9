"""The view `event_log`: the log as rows with the names that outside programs use, on both databases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from endwell.model import commands as c
from endwell.model.facts import outside_names
from endwell.model.moments import moment
from endwell.model.task import ErrorInfo
from tests.store.world import World

COLUMNS = "id, task_id, event_type, payload_json, ts, namespace, version, actor, attempt_id, epoch"
RESULTS = ("success", "pure", "side_effect_committed", "retryable_failure", "permanent_failure")


async def rows_of(world: World, task_id: str) -> list[dict[str, Any]]:
    query = f"SELECT {COLUMNS} FROM event_log WHERE task_id = '{task_id}' ORDER BY version"
    return [dict(zip(COLUMNS.split(", "), row, strict=True)) for row in await world.database.sql(query)]


@pytest.mark.covers("S4.48", "S4.49", "S4.50")
async def test_every_event_of_a_task_is_a_row_under_its_own_name(world: World) -> None:
    task = await world.running_task()
    await world.do(world.finish(task))

    rows = await rows_of(world, task.id)

    events = await world.store.events_of_task("default", task.id)
    assert [row["event_type"] for row in rows] == [each.type for each in events]
    assert {"task.created", "task.claimed", "task.succeeded"} <= {row["event_type"] for row in rows}
    assert [row["id"] for row in rows] == [each.event_id for each in events]
    assert [row["ts"] for row in rows] == [moment(each.at) for each in events]
    assert [json.loads(row["payload_json"]) for row in rows] == [json.loads(e.data) for e in events]


@pytest.mark.covers("S4.17", "S4.51", "S4.53")
async def test_a_failed_task_has_its_heartbeat_its_end_and_its_dead_letter_in_the_view(world: World) -> None:
    task = await world.running_task()
    await world.do(world.to(c.Progress, task))
    gone = ErrorInfo(code="bad_input", retryable=False)
    await world.do(world.to(c.FailTurn, task, error=gone))

    names = {row["event_type"] for row in await rows_of(world, task.id)}

    assert {"task.heartbeat", "task.failed", "task.dlq"} <= names


@pytest.mark.parametrize("result_type", RESULTS)
async def test_the_record_of_a_step_is_as_many_rows_as_export_and_relay_have_names_for_it(
    world: World, result_type: str
) -> None:
    task = await world.running_task()
    about = {} if "failure" in result_type else {"content": b"1", "content_hash": "x"}
    await world.do(world.to(c.RecordStep, task, step="1:()plan#1", result_type=result_type, **about))

    rows = [row for row in await rows_of(world, task.id) if "." not in row["event_type"]]

    assert sorted(row["event_type"] for row in rows) == sorted(outside_names(result_type))
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(json.loads(row["payload_json"])["step"] == "1:()plan#1" for row in rows)
