"""The same key is the same task, however often and from wherever it is submitted."""

from __future__ import annotations

import asyncio

import apsw
import asyncpg
import pytest

from endwell.errors import IdempotencyConflict
from tests.store.world import World


@pytest.mark.covers("S4.13", "S4.32")
async def test_the_same_submission_twice_is_one_task(world: World) -> None:
    first = await world.reply(world.submit(key="ticket-7"))
    second = await world.reply(world.submit(key="ticket-7"))
    assert (first.is_new, second.is_new) == (True, False)
    assert second.unwrap() == first.unwrap()
    assert await world.store.counts_by_status("default") == {"queued": 1}


async def test_an_ended_task_is_returned_for_its_key(world: World) -> None:
    task = await world.running_task(key="ticket-7")
    done = await world.do(world.finish(task))
    assert await world.queued_task(key="ticket-7") == done


async def test_the_same_key_twice_in_one_batch_is_one_task(world: World) -> None:
    replies = await world.store.commit([world.submit(key="k") for _ in range(5)])
    assert len({reply.unwrap().id for reply in replies}) == 1
    assert [reply.is_new for reply in replies] == [True, False, False, False, False]


@pytest.mark.covers("S4.35")
async def test_the_database_itself_refuses_a_second_row_of_a_key(world: World) -> None:
    """A unique index also stops a writer that bypasses the door."""
    await world.queued_task(key="ticket-7")
    second = await world.queued_task()
    with pytest.raises((apsw.ConstraintError, asyncpg.UniqueViolationError)):
        await world.database.sql(f"UPDATE tasks SET idempotency_key = 'ticket-7' WHERE id = '{second.id}'")
    assert await world.task(second) == second


@pytest.mark.covers("S4.35")
async def test_the_same_key_from_many_stores_at_once_is_one_task(world: World) -> None:
    stores = [world.store, *[await world.another_store() for _ in range(3)]]
    for number in range(5):
        commands = [world.submit(key=f"k{number}") for _ in stores]
        replies = await asyncio.gather(
            *(store.commit_one(command) for store, command in zip(stores, commands, strict=True))
        )
        assert len({reply.unwrap().id for reply in replies}) == 1
        assert sum(reply.is_new for reply in replies) == 1
    assert await world.store.counts_by_status("default") == {"queued": 5}


@pytest.mark.parametrize("other", [{"payload": b'{"other":1}'}, {"agent": "tester"}, {"agent_key": "x"}])
async def test_the_same_key_for_something_else_is_a_conflict(world: World, other: dict[str, object]) -> None:
    task = await world.queued_task(key="ticket-7")
    with pytest.raises(IdempotencyConflict) as caught:
        await world.queued_task(**{"key": "ticket-7", **other})
    assert caught.value.task_id == task.id
    assert await world.store.counts_by_status("default") == {"queued": 1}


async def test_keys_belong_to_their_namespace(world: World) -> None:
    command = world.submit(key="k")
    await world.do(command)
    other = type(command)(
        command_id=world.new_id(),
        namespace="other",
        task_id=world.new_id(),
        agent="coder",
        payload=b"{}",
        payload_hash=command.payload_hash,
        key="k",
    )
    assert (await world.reply(other)).is_new


async def test_a_command_sent_twice_without_a_key_is_one_task(world: World) -> None:
    command = world.submit()
    first = await world.do(command)
    neighbour = world.submit()
    again, beside = await world.store.commit([command, neighbour])
    assert (again.unwrap(), again.is_new) == (first, False)
    assert beside.is_new
    with pytest.raises(IdempotencyConflict):
        await world.do(world.submit(task_id=first.id, payload=b'"other"'))


async def test_the_database_itself_refuses_a_second_task_with_a_key(world: World) -> None:
    await world.queued_task(key="k")
    other = await world.queued_task(key="l")
    with pytest.raises(Exception, match=r"(?i)unique"):
        await world.database.sql(f"UPDATE tasks SET idempotency_key = 'k' WHERE id = '{other.id}'")
