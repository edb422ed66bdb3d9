"""Conflicting transactions are tried again or refused, and other commands of the batch do not suffer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from endwell.model import commands as c
from endwell.store.postgres.committing import CommittingConnection
from endwell.store.postgres.connection import COMMITTING
from tests.patience import PATIENCE_SECONDS
from tests.store.world import PostgresDatabase, World

MOVERS = 8


@pytest.fixture
async def stranger(postgres_database: PostgresDatabase) -> AsyncIterator[Any]:
    """A connection that holds locks of its own."""
    connection = await asyncpg.connect(postgres_database.url, server_settings={"deadlock_timeout": "100s"})
    yield connection
    await connection.close()


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each try at a batch ended."""
    ends: list[str] = []
    real = CommittingConnection.attempt

    async def noted(self: CommittingConnection, *args: Any, **options: Any) -> Any:
        try:
            outcome = await real(self, *args, **options)
        except Exception as error:
            ends.append(getattr(error, "sqlstate", type(error).__name__))
            raise
        ends.append("done")
        return outcome

    monkeypatch.setattr(CommittingConnection, "attempt", noted)
    return ends


async def world_with(database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, **settings: str) -> World:
    for name, value in settings.items():
        monkeypatch.setitem(COMMITTING, name, value)
    world = World(database)
    await world.open()
    return world


async def waits_for_a_lock(stranger: Any) -> None:
    """Wait until a connection of a store waits for a lock."""
    ours = "application_name = 'endwell' AND datname = current_database()"
    ask = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND {ours}"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await stranger.fetchval(ask):  # noqa: ASYNC110 - the server does not announce it
            await asyncio.sleep(0.005)


async def test_a_serialization_failure_is_tried_again(
    postgres_database: PostgresDatabase, stranger: Any, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(
        postgres_database, monkeypatch, default_transaction_isolation="repeatable read", lock_timeout="60s"
    )
    task = await world.running_task()
    tries.clear()
    async with stranger.transaction():
        await stranger.execute("UPDATE tasks SET owner = owner")
        commit = asyncio.create_task(world.store.commit([world.finish(task), world.claim_next()]))
        await waits_for_a_lock(stranger)
    finished, _ = await commit
    assert finished.unwrap().status == "succeeded"
    assert tries == ["40001", "done"]
    await world.close()


async def test_a_deadlock_is_tried_again(
    postgres_database: PostgresDatabase, stranger: Any, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(postgres_database, monkeypatch, deadlock_timeout="1s")
    first, second = sorted([await world.running_task() for _ in range(2)], key=lambda task: task.id)
    tries.clear()
    async with stranger.transaction():
        await stranger.execute("SET LOCAL deadlock_timeout = '60s'")  # who waits looks once: we, not it
        await stranger.execute("SELECT 1 FROM tasks WHERE id = $1 FOR UPDATE", second.id)
        batch = [world.finish(second), world.finish(first), world.claim_next()]
        commit = asyncio.create_task(world.store.commit(batch))
        await waits_for_a_lock(stranger)
        await stranger.execute("SELECT 1 FROM tasks WHERE id = $1 FOR UPDATE", first.id)
    replies = await commit
    assert [reply.refusal for reply in replies] == [None, None, None]
    assert "40P01" in tries
    assert tries[-1] == "done"
    await world.close()


async def test_a_lost_race_is_noticed_by_the_version(
    postgres_database: PostgresDatabase, stranger: Any, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(postgres_database, monkeypatch)
    other = await world.another_store()
    task = await world.running_task()
    tries.clear()
    async with stranger.transaction():
        await stranger.execute("SELECT 1 FROM tasks FOR UPDATE")
        both = [
            asyncio.create_task(world.store.commit([world.finish(task)])),
            asyncio.create_task(other.commit([world.to(c.Cancel, task)])),
        ]
        await waits_for_a_lock(stranger)
    (finished,), (cancelled,) = [await each for each in both]
    assert (finished.refusal is None) != (cancelled.refusal is None)
    assert await world.problems() == []
    await world.close()


async def test_a_session_that_is_being_closed_claims_no_task(
    postgres_database: PostgresDatabase, stranger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(postgres_database, monkeypatch)
    await world.open_session("s1")
    task = await world.queued_task()
    async with stranger.transaction():
        await stranger.execute("UPDATE sessions SET ended_at = lease_until, end_reason = 'test'")
        claim = asyncio.create_task(world.reply(world.claim_next("s1")))
        await asyncio.wait(
            [claim, asyncio.create_task(waits_for_a_lock(stranger))], return_when="FIRST_COMPLETED"
        )
    reply = await claim
    assert reply.refusal is not None
    assert not reply.taken
    assert (await world.task(task)).status == "queued"
    await world.close()


async def test_a_command_whose_row_stays_locked_fails_alone(
    postgres_database: PostgresDatabase, stranger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(postgres_database, monkeypatch, lock_timeout="50ms")
    locked, free = await world.running_task(), await world.running_task()
    async with stranger.transaction():
        await stranger.execute("SELECT 1 FROM tasks WHERE id = $1 FOR UPDATE", locked.id)
        refused, finished, submitted = await world.store.commit(
            [world.finish(locked), world.finish(free), world.submit()]
        )
    assert refused.refusal is not None
    assert refused.refusal.code == "store_busy"
    assert finished.unwrap().status == "succeeded"
    assert submitted.is_new
    assert (await world.do(world.finish(locked))).status == "succeeded"
    await world.close()


async def test_a_locked_table_does_not_make_every_command_wait(
    postgres_database: PostgresDatabase, stranger: Any, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(postgres_database, monkeypatch, lock_timeout="50ms")
    tries.clear()
    async with stranger.transaction():
        await stranger.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        replies = await world.store.commit([world.submit() for _ in range(50)])
    assert {reply.refusal.code for reply in replies if reply.refusal} == {"store_busy"}
    assert len(tries) < 10
    assert (await world.reply(world.submit())).is_new
    await world.close()


async def test_claims_pass_over_tasks_that_are_being_taken(
    postgres_database: PostgresDatabase, stranger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(postgres_database, monkeypatch)
    await world.open_session()
    first, second = [reply.unwrap() for reply in await world.store.commit([world.submit(), world.submit()])]
    async with stranger.transaction():
        await stranger.execute("SELECT 1 FROM tasks WHERE id = $1 FOR UPDATE", first.id)
        assert [task.id for task in await world.claimed(limit=5)] == [second.id]
    await world.close()


async def test_a_row_that_vanishes_under_a_command_leaves_no_events_behind(
    postgres_database: PostgresDatabase, stranger: Any, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(postgres_database, monkeypatch, lock_timeout="60s")
    task = await world.running_task()
    tries.clear()
    async with stranger.transaction():
        await stranger.execute("DELETE FROM tasks")
        finish = world.finish(task)
        commit = asyncio.create_task(world.store.commit([finish]))
        await waits_for_a_lock(stranger)
    (reply,) = await commit
    assert reply.refusal is not None
    assert reply.refusal.code == "no_such_task"
    assert "task.succeeded" not in await world.history(task)
    assert tries == ["EW001", "done"]
    await world.close()


async def test_claims_of_one_agent_key_do_not_conflict(
    postgres_database: PostgresDatabase, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(postgres_database, monkeypatch)
    other = await world.another_store()
    await world.open_session()
    for number in range(10):
        await world.store.commit([world.submit(agent_key=f"k{number}") for _ in range(8)])
        claims = [asyncio.create_task(world.claimed(store=store)) for store in (world.store, other)]
        held = [task for claim in claims for task in await claim]
        assert len(held) == 1
        await world.do(world.finish(held[0]))
        rest = [world.to(c.Cancel, task) for task in await world.store.tasks_page("default", status="queued")]
        await world.store.commit(rest)
    assert set(tries) == {"done"}  # the unique index behind it was never needed
    await world.close()


async def test_the_end_of_a_parent_reaches_children_that_keep_moving(
    postgres_database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await world_with(postgres_database, monkeypatch)
    parent = await world.running_task()
    calls = [world.call(parent, f"ask-{number}", "call", is_child=True) for number in range(20)]
    children = [world.submit(parent_id=parent.id, parent_call=call.tool_call_id) for call in calls]
    await world.store.commit((*children, world.to(c.Suspend, parent, calls=tuple(calls))))
    is_over = False

    async def move_them() -> None:
        """As claims do."""
        connection = await asyncpg.connect(postgres_database.url)
        for child in itertools.cycle(children):
            await connection.execute("UPDATE tasks SET version = version + 1 WHERE id = $1", child.task_id)
            if is_over:
                break
        await connection.close()

    moving = [asyncio.create_task(move_them()) for _ in range(MOVERS)]
    await world.do(world.to(c.Cancel, parent))
    is_over = True
    await asyncio.gather(*moving)
    assert {task.status for task in await world.store.children("default", parent.id)} == {"cancelled"}
    await world.close()
