"""Claims cost few round trips, and take nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from endwell.machine.claiming import next_turn
from endwell.model import commands as c
from endwell.model.task import Task
from endwell.store.contract import Store
from endwell.store.postgres.store import PostgresStore
from tests.store.world import PostgresDatabase, World
from tests.support.world import eventually


@pytest.fixture
async def world(postgres_database: PostgresDatabase) -> Any:
    world = World(postgres_database)
    await world.open()
    await world.open_session(lease=3600)
    yield world
    await world.close()


@contextmanager
def asked_of(store: Store) -> Iterator[list[str]]:
    """The first words of what a store's first committer sends."""
    assert isinstance(store, PostgresStore)
    committing = store._drivers[0].current
    assert committing is not None
    sent: list[str] = []

    def note(record: Any) -> None:
        sent.append(record.query.split(None, 1)[0])

    committing.connection.add_query_logger(note)
    yield sent
    committing.connection.remove_query_logger(note)


def carried(world: World, limit: int = 1, agent: str = "coder") -> c.DispatchNext:
    return c.DispatchNext(
        command_id=world.new_id(), namespace="default", agent=agent, limit=limit, is_streamed=True
    )


async def offered(store: Store, world: World, limit: int = 1) -> list[Task]:
    return [offer.task for offer in (await store.commit_one(carried(world, limit))).taken]


def claim_of(world: World, task: Task) -> c.Claim:
    turn = next_turn(task)
    about: dict[str, Any] = {"session_id": "s1", "attempt_id": world.new_id()}
    claim: c.Claim = world.to(c.Claim, task, turn_id=turn.turn_id, epoch=turn.epoch, **about)
    return claim


@pytest.mark.parametrize("count", [1, 20])
async def test_claims_from_a_stream_cost_two_round_trips(world: World, count: int) -> None:
    claims = [claim_of(world, await world.queued_task()) for _ in range(count)]
    with asked_of(world.store) as sent:
        replies = await world.store.commit(claims)
    assert [reply.unwrap().status for reply in replies] == ["running"] * count
    assert len(sent) == 2


async def test_a_session_is_found_although_its_first_claim_names_no_task(world: World) -> None:
    known, unknown = await world.queued_task(), await world.queued_task()
    claims = [claim_of(world, replace(unknown, id="0")), claim_of(world, known)]
    first, second = await world.store.commit(claims)
    assert first.refusal is not None
    assert second.unwrap().status == "running"


async def test_a_claim_for_an_unknown_session_is_refused(world: World) -> None:
    await world.queued_task()
    (task,) = await offered(world.store, world)
    reply = await world.reply(world.to(c.Claim, task, session_id="unknown", attempt_id=world.new_id()))
    assert reply.refusal is not None
    assert (await world.task(task)).status == "dispatched"


async def test_two_orchestrators_at_once_offer_every_task_once(world: World) -> None:
    await world.store.commit([world.submit() for _ in range(300)])
    stores = [world.store, await world.another_store()]

    async def offer_all(store: Store) -> list[str]:
        found: list[str] = []
        while some := await offered(store, world, limit=20):
            found += [task.id for task in some]
        return found

    first, second = await asyncio.gather(*map(offer_all, stores))
    assert len(first) + len(second) == len({*first, *second}) == 300
    assert await world.problems() == []


async def test_a_slot_that_another_transaction_takes_is_not_offered(
    world: World, postgres_database: PostgresDatabase
) -> None:
    await world.register(c.AgentSpec(name="coder", concurrency=3))
    await world.store.commit([world.submit() for _ in range(10)])
    other, onlooker = [await asyncpg.connect(postgres_database.url) for _ in range(2)]
    async with other.transaction():
        await other.execute("UPDATE slots SET task_id = 'another' WHERE slot = 0")
        offering = asyncio.create_task(offered(world.store, world, limit=10))

        async def is_over_or_waits() -> bool:
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            return offering.done() or bool(await onlooker.fetchval(waiting))

        await eventually(is_over_or_waits)
    assert [task.slot for task in await offering] == [1, 2]
    for connection in (other, onlooker):
        await connection.close()


async def test_one_turn_of_an_agent_key_is_offered(world: World) -> None:
    await world.store.commit([world.submit(agent_key="issue-1") for _ in range(3)])
    stores = [world.store, await world.another_store()]
    found = await asyncio.gather(*(offered(store, world, limit=10) for store in stores))
    assert sum(map(len, found)) == 1
