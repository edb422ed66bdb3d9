"""Counters in the commits, ticks in the sessions, and cursors with one holder."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from endwell.errors import Refused
from endwell.model import commands as c
from endwell.model.cursor import Cursor
from endwell.model.moments import SECOND
from endwell.store.contract import Store
from tests.store.world import World

HOUR = 3600 * SECOND


def take(world: World, holder: str, lease: float = 30, **options: Any) -> c.TakeCursor:
    about = {"command_id": world.new_id(), "namespace": "default", "name": "relay", "holder": holder}
    return c.TakeCursor(**about, lease=round(lease * SECOND), **options)


def move(world: World, held: Cursor, position: str, lease: float = 30, **options: Any) -> c.MoveCursor:
    about: dict[str, Any] = {"command_id": world.new_id(), "namespace": "default", "name": "relay"}
    return c.MoveCursor(
        **about,
        holder=held.holder,
        fence=held.fence,
        position=position,
        lease=round(lease * SECOND),
        **options,
    )


async def taken(world: World, holder: str, store: Store | None = None, **options: Any) -> Cursor:
    cursor = (await (store or world.store).commit_one(take(world, holder, **options))).cursor
    assert cursor is not None
    return cursor


async def test_every_commit_counts_what_it_accepts_and_ends(world: World) -> None:
    assert await world.store.task_tallies("default") == (0, 0)
    done, failed = await world.running_task(), await world.running_task()
    await world.queued_task(key="once")
    await world.do(world.finish(done))
    await world.do(world.to(c.Cancel, failed))
    assert await world.store.task_tallies("default") == (3, 2)

    again = await world.queued_task(key="once")  # the same task, accepted once
    await world.reply(world.finish(done, b'"late"'))  # refused: it has ended
    counted = await world.store.count_conservation("default")
    assert (counted.accepted, counted.ended, counted.tasks, counted.ended_tasks) == (3, 2, 3, 2)
    assert counted.is_conserved
    assert again.status == "queued"


async def test_a_task_that_is_gone_breaks_the_count(world: World) -> None:
    task = await world.queued_task()
    await world.database.sql(f"DELETE FROM tasks WHERE id = '{task.id}'")
    counted = await world.store.count_conservation("default")
    assert not counted.is_conserved
    assert (counted.accepted, counted.tasks) == (1, 0)


async def test_several_stores_count_together_and_their_counters_are_added_up(world: World) -> None:
    others = [await world.another_store() for _ in range(3)]
    await asyncio.gather(
        *(store.commit_one(world.submit()) for store in (world.store, *others) for _ in range(5))
    )
    assert await world.store.task_tallies("default") == (20, 0)

    world.advance(7200)
    fold = c.FoldTallies(command_id=world.new_id(), namespace="default", idle=HOUR)
    await world.store.commit((world.submit(), fold, world.submit()))
    await others[0].commit_one(world.submit())  # a writer whose row was added up and dropped begins a new one
    assert await world.store.task_tallies("default") == (23, 0)
    assert (await world.store.count_conservation("default")).is_conserved
    assert len(await world.database.sql("SELECT writer FROM tallies")) <= 4


async def test_the_time_of_a_supervisors_tick_is_kept_by_the_stores_clock(world: World) -> None:
    assert await world.store.last_tick("default") is None
    opening = c.OpenSession(
        command_id=world.new_id(),
        namespace="default",
        session_id="p1",
        kind="pmo",
        name="p",
        host="h",
        pid=1,
        agents=(),
        concurrency=0,
        lease=30 * SECOND,
    )
    await world.store.commit_one(opening)
    assert await world.store.last_tick("default") is None, "a supervisor that has not ticked is no supervisor"

    def beat(age: float | None) -> c.Heartbeat:
        about: dict[str, Any] = {
            "command_id": world.new_id(),
            "namespace": "default",
            "session_id": "p1",
        }
        return c.Heartbeat(**about, lease=SECOND, tick_age=None if age is None else round(age * SECOND))

    await world.store.commit_one(beat(2))
    first = await world.store.last_tick("default")
    assert first is not None
    assert 2 * SECOND <= await world.store.now() - first < 600 * SECOND
    world.advance(60)
    await world.store.commit_one(beat(None))  # it beats, and does not come to the end of a tick
    assert await world.store.last_tick("default") == first


async def test_a_cursor_has_one_holder_until_its_lease_lapses(world: World) -> None:
    first = await taken(world, "a", start="7")
    assert (first.position, first.fence) == ("7", 1)
    with pytest.raises(Refused, match="a follows the log"):
        await taken(world, "b")
    await world.store.commit_one(move(world, first, "9"))

    world.advance(31)
    second = await taken(world, "b", start="7")
    assert (second.position, second.fence) == ("9", 2), "it continues where the other one was"
    refusal = (await world.reply(move(world, first, "12"))).refusal
    assert refusal is not None
    assert refusal.code == "cursor_lost"
    assert await world.store.cursor("default", "relay") == second


async def test_a_released_cursor_is_free_at_once(world: World) -> None:
    first = await taken(world, "a")
    await world.store.commit_one(move(world, first, "5", lease=0, trouble="no answer"))
    left = await world.store.cursor("default", "relay")
    assert left is not None
    assert left.trouble == "no answer"
    assert (await taken(world, "b")).position == "5"


async def test_one_of_many_holders_that_take_a_cursor_at_once_may_move_it(world: World) -> None:
    stores = [world.store, *[await world.another_store() for _ in range(3)]]
    asked = [store.commit((take(world, f"h{number}"),)) for number, store in enumerate(stores)]
    held = [reply.cursor for (reply,) in await asyncio.gather(*asked) if reply.cursor is not None]
    moved = [await world.reply(move(world, cursor, "1")) for cursor in held]
    assert sum(reply.refusal is None for reply in moved) == 1
