"""Which tasks are handed out, and in what order."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from tests.store.world import World, flat


@pytest.mark.covers("S3.1", "S3.2")
async def test_two_workers_never_claim_the_same_task(world: World) -> None:
    await world.store.commit([world.submit() for _ in range(120)])
    stores = [world.store, await world.another_store(), await world.another_store()]
    for number in range(len(stores)):
        await world.open_session(f"s{number}")

    async def claim_all(number: int) -> list[str]:
        ids: list[str] = []
        while taken := await world.claimed(f"s{number}", limit=7, store=stores[number]):
            ids += [task.id for task in taken]
        return ids

    claimed = flat(await asyncio.gather(*map(claim_all, range(len(stores)))))
    assert len(set(claimed)) == len(claimed)
    # a claim that met another's locks may have come back empty-handed; what is left is still there
    while taken := await world.claimed("s0", limit=50):
        claimed += [task.id for task in taken]
    assert len(set(claimed)) == len(claimed) == 120
    assert await world.problems() == []


async def test_the_most_urgent_is_claimed_first_then_the_longest_ready_then_the_oldest(world: World) -> None:
    await world.open_session(lease=3600)
    late = await world.queued_task(delay=30 * SECOND)
    early = await world.queued_task(delay=20 * SECOND)
    urgent = await world.queued_task(priority=5, delay=40 * SECOND)
    more_urgent = await world.queued_task(priority=9, delay=45 * SECOND)
    low = await world.queued_task(priority=-1)
    world.advance(60)
    order = [task.id for task in await world.claimed(limit=10)]
    assert order == [more_urgent.id, urgent.id, early.id, late.id, low.id]


async def test_tasks_ready_at_the_same_time_go_by_age(world: World) -> None:
    await world.open_session()
    replies = await world.store.commit([world.submit() for _ in range(10)])
    assert [t.id for t in await world.claimed(limit=10)] == [reply.unwrap().id for reply in replies]


async def test_a_claim_for_several_agents_goes_by_urgency_across_them(world: World) -> None:
    await world.open_session()
    low = await world.queued_task(agent="coder")
    high = await world.queued_task(agent="tester", priority=3)
    taken = await world.claimed(limit=1, agents=("coder", "tester"))
    assert [t.id for t in taken] == [high.id]
    assert [t.id for t in await world.claimed(limit=9, agents=("coder", "tester", "none"))] == [low.id]


async def test_a_delayed_task_is_not_handed_out_early(world: World) -> None:
    await world.open_session(lease=3600)
    task = await world.queued_task(delay=60 * SECOND)
    world.advance(59)
    assert await world.claimed() == []
    world.advance(2)
    assert [t.id for t in await world.claimed()] == [task.id]


async def test_a_turn_already_offered_comes_before_a_queued_task(world: World) -> None:
    await world.open_session()
    offered = await world.queued_task()
    await world.store.commit_one(world.dispatch_next())
    await world.queued_task(priority=9)
    assert [t.id for t in await world.claimed()] == [offered.id]
    assert await world.store.offered_count("default", "coder") == 0


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_only_a_turn_that_no_stream_carries_lies_in_the_inbox_however_often_it_is_rung_for(
    world: World, is_streamed: bool
) -> None:
    await world.open_session()
    await world.queued_task()
    (offer,) = (await world.reply(replace(world.dispatch_next(), is_streamed=is_streamed))).taken
    world.advance(11)
    rung = await world.do(world.to(c.ClockFired, offer.task))
    assert "task.rang_again" in await world.history(rung)
    assert len(await world.store.inbox_page("default")) == (0 if is_streamed else 2)
    await world.do(world.finish(await world.claim(rung)))
    rows = await world.store.inbox_page("default")
    assert {row.status for row in rows} == (set() if is_streamed else {"consumed"})
    assert await world.problems() == []


async def test_a_streamed_turn_comes_with_its_payload(world: World) -> None:
    """A foreign worker knows only the entry, and never asks the store."""
    await world.store.commit_one(world.submit(payload=b'{"width":640}'))
    (offer,) = (await world.reply(replace(world.dispatch_next(), is_streamed=True))).taken
    assert offer.payload == b'{"width":640}'


async def test_an_offer_that_is_delivered_twice_is_granted_once(world: World) -> None:
    """Two workers ask for the same turns at the same moment, each by a store of its own."""
    await world.store.commit([world.submit() for _ in range(40)])
    reply = await world.reply(replace(world.dispatch_next(limit=40), is_streamed=True))
    stores = [world.store, await world.another_store()]
    claims: list[list[c.Command]] = []
    for number in range(len(stores)):
        session = await world.open_session(f"s{number}")
        claims.append(
            [
                world.to(c.Claim, offer.task, session_id=session, attempt_id=world.new_id())
                for offer in reply.taken
            ]
        )
    answers = await asyncio.gather(*(s.commit(some) for s, some in zip(stores, claims, strict=True)))
    granted = [[each.refusal is None for each in some] for some in answers]
    assert [sum(pair) for pair in zip(*granted, strict=True)] == [1] * 40
    assert await world.problems() == []


async def test_stream_demand_has_ready_agents_and_live_workers(world: World) -> None:
    await world.register(c.AgentSpec(name="coder"), c.AgentSpec(name="tester"))
    await world.open_session(lease=60)
    await world.open_session("gone", lease=1)
    held = await world.claim(await world.queued_task())
    await world.queued_task(priority=3)
    await world.queued_task(priority=1)
    await world.queued_task(agent="tester", delay=60 * SECOND)
    await world.store.commit_one(world.dispatch_next())
    world.advance(2)
    found = await world.store.stream_demand("default", await world.store.now())
    assert (found.ready, found.dispatched) == (["coder"], {"coder": 1})
    (worker,) = found.workers
    assert (worker.session_id, worker.held) == (held.session_id, 1), "the other one's lease has lapsed"
    world.advance(59)
    later = await world.store.stream_demand("default", await world.store.now())
    assert (sorted(later.ready), later.workers) == (["coder", "tester"], [])


async def test_ready_turns_come_in_the_order_in_which_they_are_taken_from_behind_a_place_on(
    world: World,
) -> None:
    await world.register(c.AgentSpec(name="coder"), c.AgentSpec(name="tester", concurrency=2))
    await world.open_session(lease=3600)
    low, first, second = [await world.queued_task(priority=p, payload=b"7") for p in (1, 5, 5)]
    await world.queued_task(priority=5, delay=60 * SECOND)
    await world.queued_task(agent="tester", agent_key="k")
    found = await world.store.ready_turns("default", "coder", 10)
    assert [turn.id for turn in found] == [first.id, second.id, low.id]
    assert (found[0].payload, found[0].slots, found[0].agent_key) == (b"7", None, None)
    behind = await world.store.ready_turns("default", "coder", 10, found[0].position)
    assert [turn.id for turn in behind] == [second.id, low.id]
    urgent = await world.queued_task(priority=9)
    some = await world.store.ready_turns("default", "coder", 2, found[0].position)
    assert [turn.id for turn in some] == [urgent.id, second.id], "what is more urgent goes first all the same"
    (other,) = await world.store.ready_turns("default", "tester", 10)
    assert (other.slots, other.agent_key) == (2, "k")
    assert await world.store.ready_turns("default", "unserved", 10) == []


async def test_epochs_are_read_of_tasks_that_are_still_queued(world: World) -> None:
    await world.open_session()
    waiting, taken = await world.queued_task(), await world.queued_task()
    back = await world.claim(await world.queued_task())
    await world.claim(taken)
    await world.do(world.to(c.HandBack, back))
    found = await world.store.epochs_of_queued("default", [waiting.id, taken.id, back.id, "unknown"])
    assert found == {waiting.id: 0, back.id: 1}


async def test_tasks_of_agents_that_were_not_asked_for_are_left(world: World) -> None:
    await world.open_session()
    await world.queued_task(agent="tester")
    assert await world.claimed(agents=("coder",)) == []


# tasks that kill their workers


async def test_a_worker_takes_one_suspect_at_a_time(world: World) -> None:
    await world.open_session(lease=36_000)
    suspects = [await world.queued_task() for _ in range(2)]
    for _ in range(world.limits.crash_limit - 1):
        for task in await world.claimed(limit=1) + await world.claimed(limit=1):
            await world.do(world.to(c.Reclaim, task, reason="visibility_timeout"))
    plain = await world.queued_task()
    taken = await world.claimed(limit=10)
    assert {task.id for task in taken} == {suspects[0].id, plain.id}
    without = c.ClaimNext(
        command_id=world.new_id(),
        namespace="default",
        session_id="s1",
        agents=("coder",),
        limit=10,
        may_take_suspect=False,
    )
    assert (await world.store.commit_one(without)).taken == ()


async def crashed_often(world: World, *agents: str) -> list[Task]:
    """A task of each agent that one more crash would end."""
    tasks = [await world.queued_task(agent=agent) for agent in agents]
    for _ in range(world.limits.crash_limit - 1):
        for task in tasks:
            held = await world.claim(task)
            await world.do(world.to(c.Reclaim, held, reason="visibility_timeout"))
    return tasks


async def test_one_suspect_at_a_time_is_offered_on_streams(world: World) -> None:
    """Any worker may take an offer from a stream, also one that holds a suspect."""
    await world.open_session(lease=36_000, agents=("coder", "clerk"))
    suspects = await crashed_often(world, "coder", "clerk", "coder")
    plain = await world.queued_task()

    async def offered() -> list[str]:
        each = [world.dispatch_next(10, agent) for agent in ("coder", "clerk")]
        both = [replace(one, may_offer_suspect=True, is_streamed=True) for one in each]
        return [offer.task.id for reply in await world.store.commit(both) for offer in reply.taken]

    assert await offered() == [suspects[0].id, plain.id]
    assert await offered() == [], "it waits for a worker"
    taken = await world.claimed(limit=1)
    assert [task.id for task in taken] == [suspects[0].id]
    assert await offered() == [], "a worker holds it"
    await world.do(world.finish(taken[0]))
    assert await offered() == [suspects[2].id]


async def test_two_hundred_workers_that_start_at_once_get_one_task_each(world: World) -> None:
    """L3: no two workers claim one task, and none leaves without a task while there is work."""
    count = 200
    await world.store.commit([world.submit() for _ in range(count)])
    stores = [world.store, *[await world.another_store() for _ in range(7)]]
    for number in range(count):
        await world.open_session(f"s{number}", concurrency=1)

    async def claimed_at(place: int) -> list[list[Task]]:
        """Each store is a process of its own, and a process has one claim under way."""
        sessions = range(place, count, len(stores))
        return [await world.claimed(f"s{number}", store=stores[place]) for number in sessions]

    taken = flat(await asyncio.gather(*map(claimed_at, range(len(stores)))))
    assert [len(tasks) for tasks in taken] == [1] * count
    assert len({task.id for task in flat(taken)}) == count
    assert await world.store.counts_by_status("default") == {"running": count}


async def flooded(world: World, count: int) -> None:
    """Insert copies of one urgent task past the door, which would take much longer."""
    first = await world.queued_task(priority=9)
    fields = Task.__struct_fields__
    own = {"id": "t.id || '.' || n.i", "idempotency_key": "t.id || '.' || n.i"}
    copied = ", ".join(own.get(name, f"t.{name}") for name in fields)
    await world.database.sql(
        f"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
        f"INSERT INTO tasks ({', '.join(fields)}) SELECT {copied} FROM tasks t, n WHERE t.id = '{first.id}'"
    )
    assert await world.store.counts_by_status("default") == {"queued": count}


@pytest.mark.parametrize("other", [{"namespace": "other"}, {"agent": "tester"}], ids=["namespace", "agent"])
async def test_a_flood_of_one_tenant_does_not_delay_anothers_task(
    world: World, other: dict[str, str]
) -> None:
    """L4: tenants have namespaces or agents of their own; the first claim finds the task behind the flood."""
    await flooded(world, 100_000)
    late = (await world.reply(replace(world.submit(), **other))).unwrap()
    namespace, agent = other.get("namespace", "default"), other.get("agent", "coder")
    await world.open_session("theirs", namespace=namespace, agents=(agent,))
    claim = replace(world.claim_next("theirs", agents=(agent,)), namespace=namespace)
    assert [offer.task.id for offer in (await world.reply(claim)).taken] == [late.id]
