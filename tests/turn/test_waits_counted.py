"""Waits that are rows of their own: each lowers its task's counter once, however often its answer comes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from endwell import AsyncHandle, Context
from endwell.model import commands as c
from endwell.model.card import call_id
from endwell.model.content import fingerprint
from endwell.model.task import Task, open_waits
from endwell.operate.record.task_check import side_row_problems
from endwell.operate.record.verify import verify
from tests.operate.test_integrity import FORGED, FORGED_HASH, Forger
from tests.operate.test_transfer import another, exported, imported, refused
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World
from tests.turn.test_many_waits import rows_of_waits

MANY = 40
"""More than a task's row keeps."""


@pytest.fixture
async def mixed(world: World) -> World:
    @world.app.agent("mixed")
    async def mixed(ctx: Context, count: int) -> Any:
        """As many signals, sleeps and tools each, in this order."""
        return await ctx.gather(
            *(ctx.wait_signal("go") for _ in range(count)),
            *(ctx.sleep(timedelta(seconds=60)) for _ in range(count)),
            *(ctx.tool("look", timeout=120) for _ in range(count)),
        )

    return world


async def suspended(world: World, count: int = MANY) -> tuple[AsyncHandle, Task]:
    await world.working()
    handle = await world.submitted("mixed", count)
    return handle, await world.in_status(handle, "suspended")


def about(world: World, task: Task) -> dict[str, Any]:
    return {"command_id": world.app.runtime.ids.new(), "namespace": world.namespace, "task_id": task.id}


def signal(world: World, task: Task) -> c.Signal:
    return c.Signal(name="go", content=b"1", content_hash=fingerprint(b"1"), **about(world, task))


def answer(world: World, task: Task, number: int) -> c.Answer:
    call = f"{task.id}.s.1:(1.{2 * MANY + number})look#1"
    return c.Answer(tool_call_id=call, content=b"1", content_hash=fingerprint(b"1"), **about(world, task))


async def counted(world: World, task: Task) -> tuple[int, int]:
    """How many waits are open by the task's counter, and by their rows."""
    found = await world.store.task(world.namespace, task.id)
    rows = await rows_of_waits(world, task)
    return open_waits(found), sum(row.wait_status == "waiting" for row in rows)


async def test_signals_of_one_batch_each_answer_a_wait_of_their_own(mixed: World) -> None:
    _, task = await suspended(mixed)
    await mixed.store.commit([signal(mixed, task) for _ in range(5)])
    assert await counted(mixed, task) == (3 * MANY - 5, 3 * MANY - 5)


async def test_clocks_that_fire_twice_in_one_batch_settle_each_sleep_once(mixed: World) -> None:
    _, task = await suspended(mixed)
    mixed.clock.advance(61)
    fired: list[c.Command] = [c.InjectTimeout(**about(mixed, task)) for _ in range(3)]
    await mixed.store.commit([signal(mixed, task), *fired, answer(mixed, task, 0), answer(mixed, task, 0)])
    assert await counted(mixed, task) == (2 * MANY - 2, 2 * MANY - 2)
    events = await mixed.store.events_of_task(mixed.namespace, task.id)
    answered = [event.fact.tool_call_id for event in events if event.type == "wait.answered"]  # type: ignore[attr-defined]
    assert len(answered) == len(set(answered)) == MANY + 2


async def test_waits_that_are_over_and_answered_in_one_batch_count_once(mixed: World) -> None:
    handle, task = await suspended(mixed)
    mixed.clock.advance(121)
    answers: list[c.Command] = [answer(mixed, task, number) for number in range(MANY)]
    signals: list[c.Command] = [signal(mixed, task) for _ in range(2 * MANY)]
    fired = c.InjectTimeout(**about(mixed, task))
    await mixed.store.commit([fired, *answers, *signals, *answers[:3]])
    assert await counted(mixed, task) == (0, 0)
    assert (await verify(mixed.store, [mixed.namespace]))["problems"] == []
    assert len(await handle.result(PATIENCE_SECONDS)) == 3 * MANY


async def test_verify_names_the_call_of_many_that_differs(mixed: World) -> None:
    _, task = await suspended(mixed)
    call = answer(mixed, task, 7).tool_call_id
    change = "UPDATE turn_waiting_tools SET deadline = deadline + 1 WHERE namespace = ? AND tool_call_id = ?"
    await mixed.sql(change, mixed.namespace, call)
    found = (await verify(mixed.store, [mixed.namespace]))["problems"]
    assert [(one["kind"], one["about"]) for one in found] == [("wait_differs", call)]
    asked = call_id(call)
    change = "UPDATE cards SET content = ?, hash = ? WHERE namespace = ? AND id = ?"
    await mixed.sql(change, FORGED, FORGED_HASH, mixed.namespace, asked)
    found = (await verify(mixed.store, [mixed.namespace]))["problems"]
    assert ("content_changed", asked) in {(one["kind"], one["about"]) for one in found}


async def test_a_wait_counter_that_differs_from_the_waits_is_found(mixed: World) -> None:
    _, task = await suspended(mixed)
    await mixed.store.commit([answer(mixed, task, number) for number in range(2)])
    events = await mixed.store.events_of_task(mixed.namespace, task.id)
    first, second = (event for event in events if event.type == "wait.answered")
    events[events.index(second)] = replace(second, data=first.data)
    assert "waits_miscounted" in {one.kind for one in side_row_problems(task.id, events, [])}


@pytest.mark.parametrize(
    ("type_", "field", "problem"),
    [
        ("wait.answered", "tool_call_id", "does not wait for t.s.nothing"),
        ("wait.added", "waits", "waits of its task's suspension are missing"),
    ],
)
async def test_a_file_whose_waits_do_not_add_up_is_refused(
    mixed: World, tmp_path: Path, type_: str, field: str, problem: str
) -> None:
    _, task = await suspended(mixed)
    await mixed.store.commit_one(answer(mixed, task, 3))
    forged = Forger(await exported(mixed))
    (tmp_path / "as-it-is").mkdir()
    async with another(tmp_path / "as-it-is", mixed.namespace) as other:
        await imported(other, forged.file)
    values: dict[str, Any] = {"tool_call_id": "t.s.nothing", "waits": []}
    assert forged.change_events(lambda data: data.update({field: values[field]}), type_)
    await refused(mixed, tmp_path, forged.file, rf"^line \d+: .*{problem}")
