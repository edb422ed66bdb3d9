"""The log: chained per task, checked against the rows, followed without gaps."""

from __future__ import annotations

import pytest

from endwell.errors import BadInput
from endwell.model import commands as c
from endwell.store.log import check_chain
from tests.store.world import World


async def finished_task(world: World) -> str:
    task = await world.running_task()
    await world.do(world.finish(task))
    return task.id


async def kinds_of_problems(world: World) -> set[str]:
    return {problem.kind for problem in await world.problems()}


async def test_an_untouched_log_has_no_problems(world: World) -> None:
    await finished_task(world)
    assert await world.problems() == []


@pytest.mark.parametrize(
    "column", ["type = 'task.failed'", "actor = 'mallory'", "at = at + 1", "command_id = 'other'"]
)
async def test_a_changed_event_is_found(world: World, column: str) -> None:
    task_id = await finished_task(world)
    await world.database.sql(f"UPDATE events SET {column} WHERE version = 5 AND task_id = '{task_id}'")
    row, events = (
        await world.store.task("default", task_id),
        await world.store.events_of_task("default", task_id),
    )
    found = check_chain(task_id, events, (row.version, row.head_hash))
    assert "changed" in {problem.kind for problem in found}


async def test_a_missing_event_is_found(world: World) -> None:
    await finished_task(world)
    await world.database.sql("DELETE FROM events WHERE version = 3")
    assert "missing" in await kinds_of_problems(world)


async def test_reordered_events_are_found(world: World) -> None:
    await finished_task(world)
    for change in ("-1 WHERE version = 4", "4 WHERE version = 5", "5 WHERE version = -1"):
        await world.database.sql(f"UPDATE events SET version = {change}")
    assert "changed" in await kinds_of_problems(world)


async def test_a_cut_off_tail_is_found(world: World) -> None:
    await finished_task(world)
    await world.database.sql("DELETE FROM events WHERE version >= 4")
    assert "cut_off" in await kinds_of_problems(world)


async def test_a_missing_row_is_found(world: World) -> None:
    await finished_task(world)
    await world.database.sql("DELETE FROM tasks")
    assert "task_missing" in await kinds_of_problems(world)


async def test_a_follower_sees_every_event_in_order_page_by_page(world: World) -> None:
    for _ in range(4):
        await finished_task(world)
    seen, cursor = [], ""
    while page := await world.store.events_after("default", cursor, 3):
        seen += page
        cursor = page[-1].cursor
    assert len(seen) == 20
    assert [logged.seq for logged in seen] == sorted(logged.seq for logged in seen)
    by_task: dict[str, list[int]] = {}
    for logged in seen:
        by_task.setdefault(logged.event.task_id, []).append(logged.event.version)
    assert all(versions == [1, 2, 3, 4, 5] for versions in by_task.values())
    previous = {logged.event.hash for logged in seen} | {b""}
    assert all(logged.prev_hash in previous for logged in seen)


async def test_a_follower_that_starts_at_the_end_sees_only_what_comes(world: World) -> None:
    await finished_task(world)
    end = await world.store.log_end()
    assert await world.store.events_after("default", end, 10) == []
    task = await world.queued_task()
    assert [logged.event.task_id for logged in await world.store.events_after("default", end, 10)] == [
        task.id
    ]


@pytest.mark.parametrize(
    "cursor", ["x", "-1", "1.2.3", "1e3", "9" * 30, "\u0663", "1.", " 1", "1.x", "1.2", "\ud800"]
)
async def test_what_never_was_a_cursor_is_refused(world: World, cursor: str) -> None:
    await finished_task(world)

    with pytest.raises(BadInput) as refusal:
        await world.store.events_after("default", cursor, 10)

    assert refusal.value.code == "bad_cursor"


async def test_events_name_the_command_and_who_gave_it(world: World) -> None:
    task = await world.queued_task()
    command = world.to(c.Cancel, task, actor="ada", causation_id="because")
    await world.do(command)
    last = (await world.store.events_of_task("default", task.id))[-1]
    assert (last.command_id, last.actor, last.causation_id) == (command.command_id, "ada", "because")
    assert last.event_id == f"{task.id}.{last.version}"
