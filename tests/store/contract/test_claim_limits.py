"""How many tasks are handed out at once: the limits of agents, and one turn at a time for each key."""

from __future__ import annotations

import asyncio
import collections

import pytest

from endwell.model import commands as c
from tests.store.world import World, flat

# limits


async def limited(world: World, concurrency: int) -> None:
    await world.register(c.AgentSpec(name="coder", concurrency=concurrency))


async def slots_taken(world: World) -> int:
    return len(await world.database.sql("SELECT 1 FROM slots WHERE task_id IS NOT NULL"))


async def test_a_limit_is_never_exceeded_by_two_stores_at_once(world: World) -> None:
    await limited(world, 3)
    await world.open_session("s0")
    await world.open_session("s1")
    await world.store.commit([world.submit() for _ in range(30)])
    stores = [world.store, await world.another_store()]
    done = 0
    while done < 30:
        claims = (world.claimed(f"s{n}", limit=5, store=store) for n, store in enumerate(stores))
        held = flat(await asyncio.gather(*claims))
        assert 0 < len(held) <= 3
        assert await slots_taken(world) == len(held)
        await world.store.commit([world.finish(task) for task in held])
        done += len(held)
    assert await slots_taken(world) == 0
    assert await world.problems() == []


@pytest.mark.parametrize("ending", ["finish", "retry", "reclaim", "cancel", "hand_back", "block"])
async def test_a_slot_is_free_again_however_the_hold_ends(world: World, ending: str) -> None:
    await limited(world, 1)
    await world.open_session()
    await world.store.commit([world.submit(), world.submit()])
    (task,) = await world.claimed(limit=5)
    assert await world.claimed(limit=5) == []
    if ending == "reclaim":
        world.advance(31)
    commands = {
        "finish": lambda: world.finish(task),
        "retry": lambda: world.fail(task),
        "reclaim": lambda: world.to(c.Reclaim, task),
        "cancel": lambda: world.to(c.Cancel, task),
        "hand_back": lambda: world.to(c.HandBack, task),
        "block": lambda: world.to(c.Block, task, reason="look_at_it"),
    }
    await world.do(commands[ending]())
    assert await slots_taken(world) == 0
    await world.store.commit_one(world.heartbeat())
    assert len(await world.claimed(limit=5)) == 1


async def test_a_dispatched_turn_takes_its_slot_along_when_it_is_claimed(world: World) -> None:
    await limited(world, 1)
    await world.open_session()
    await world.queued_task()
    await world.queued_task()
    assert len((await world.store.commit_one(world.dispatch_next(limit=5))).taken) == 1
    assert len((await world.store.commit_one(world.dispatch_next(limit=5))).taken) == 0
    (task,) = await world.claimed(limit=5)
    assert await slots_taken(world) == 1
    await world.do(world.finish(task))
    assert await slots_taken(world) == 0


async def test_a_limit_can_be_raised_and_lowered(world: World) -> None:
    await limited(world, 1)
    await world.open_session()
    await world.store.commit([world.submit() for _ in range(10)])
    assert len(await world.claimed(limit=10)) == 1
    await limited(world, 3)
    assert len(await world.claimed(limit=10)) == 2
    await limited(world, 2)
    assert await world.claimed(limit=10) == []


async def test_a_task_taken_and_cancelled_in_one_batch_gives_its_slot_back(world: World) -> None:
    await limited(world, 1)
    await world.open_session()
    task = await world.queued_task()
    await world.store.commit([world.claim_next(), world.to(c.Cancel, task)])
    assert (await world.task(task)).status == "cancelled"
    assert await slots_taken(world) == 0


# serial keys


async def test_one_turn_at_a_time_per_key_with_two_stores_claiming_at_once(world: World) -> None:
    await world.open_session("s0")
    await world.open_session("s1")
    stores = [world.store, await world.another_store()]
    await world.store.commit([world.submit(agent_key=f"issue-{n % 3}") for n in range(18)])
    done = 0
    while done < 18:
        claims = (world.claimed(f"s{n}", limit=10, store=store) for n, store in enumerate(stores))
        held = flat(await asyncio.gather(*claims))
        keys = collections.Counter(task.agent_key for task in held)
        assert held
        assert max(keys.values()) == 1
        await world.store.commit([world.finish(task) for task in held])
        done += len(held)
    assert await world.problems() == []


async def test_a_key_stays_held_between_attempts_of_one_turn(world: World) -> None:
    await world.open_session()
    first = await world.queued_task(agent_key="k")
    second = await world.queued_task(agent_key="k")
    (task,) = await world.claimed(limit=5)
    assert task.id == first.id
    await world.do(world.to(c.HandBack, task))
    assert [t.id for t in await world.claimed(limit=5)] == [first.id]
    claim = world.to(c.Claim, second, session_id="s1", attempt_id=world.new_id())
    refusal = (await world.reply(claim)).refusal
    assert refusal is not None
    assert refusal.code == "key_is_held"


async def test_a_free_key_does_not_hold_up_tasks_without_one(world: World) -> None:
    await world.open_session()
    await world.queued_task(agent_key="k")
    await world.queued_task(agent_key="k")
    plain = await world.queued_task()
    taken = await world.claimed(limit=5)
    assert len(taken) == 2
    assert plain.id in {task.id for task in taken}
