"""Leases: one heartbeat renews one row, names what it holds, and learns what is stale."""

from __future__ import annotations

import pytest

from endwell.errors import NotFound
from endwell.model import commands as c
from endwell.model.moments import SECOND
from tests.store.world import World


@pytest.mark.covers("S3.4")
async def test_a_heartbeat_renews_the_lease(world: World) -> None:
    task = await world.running_task()
    before = await world.store.session("default", "s1")
    world.advance(20)
    reply = await world.store.commit_one(world.heartbeat(task))
    after = await world.store.session("default", "s1")
    assert reply.session == after
    assert before is not None
    assert after is not None
    assert after.lease_until - before.lease_until >= 20 * SECOND
    world.advance(20)
    assert await world.store.expired_claims("default", await world.store.now(), 10) == []


@pytest.mark.covers("S3.5", "S3.6", "S3.10")
async def test_only_a_lapsed_lease_is_a_ground_for_a_reclaim(world: World) -> None:
    task = await world.running_task()
    await world.running_task("s2")
    suspended = await world.running_task()
    await world.do(world.to(c.Suspend, suspended, calls=(world.call(suspended),)))
    world.advance(20)
    await world.store.commit_one(world.heartbeat(session="s2"))
    world.advance(15)
    expired = await world.store.expired_claims("default", await world.store.now(), 10)
    assert [(claim.task_id, claim.attempt_id) for claim in expired] == [(task.id, task.attempt_id)]


@pytest.mark.covers("S3.5")
async def test_a_reclaim_is_refused_while_the_lease_holds(world: World) -> None:
    task = await world.running_task()
    refusal = (await world.reply(world.to(c.Reclaim, task))).refusal
    assert refusal is not None
    assert refusal.code == "lease_holds"


async def test_the_tasks_of_a_closed_session_may_be_reclaimed(world: World) -> None:
    task = await world.running_task()
    await world.store.commit_one(world.close_session("s1"))
    expired = await world.store.expired_claims("default", await world.store.now(), 10)
    assert [claim.task_id for claim in expired] == [task.id]


@pytest.mark.covers("T14", "T16")
async def test_a_heartbeat_learns_which_attempts_are_stale(world: World) -> None:
    kept, lost = await world.running_task(), await world.running_task()
    await world.do(world.to(c.Cancel, lost))
    reply = await world.store.commit_one(world.heartbeat(kept, lost))
    assert reply.stale == (lost.attempt_id,)
    assert await world.task(kept) == kept  # a heartbeat touches no claim
    assert (await world.task(lost)).attempt_id is None


@pytest.mark.covers("T16")
async def test_a_task_won_back_is_not_kept_by_its_old_attempt(world: World) -> None:
    old = await world.running_task()
    await world.do(world.to(c.HandBack, old))
    new = await world.claim(old)
    reply = await world.store.commit_one(world.heartbeat(old, new))
    assert reply.stale == (old.attempt_id,)


async def test_an_attempt_left_unnamed_twice_is_taken_back(world: World) -> None:
    task = await world.running_task()
    await world.store.commit_one(world.heartbeat())
    assert (await world.task(task)).status == "running"
    await world.store.commit_one(world.heartbeat(task))
    await world.store.commit_one(world.heartbeat())
    assert (await world.task(task)).status == "running"
    await world.store.commit_one(world.heartbeat())
    assert (await world.task(task)).status == "queued"
    assert (await world.history(task))[-1] == "task.reclaimed"


async def test_a_closed_session_learns_it_from_its_heartbeat(world: World) -> None:
    await world.open_session()
    world.advance(31)
    assert await world.store.lapsed_sessions("default", await world.store.now(), 10) == ["s1"]
    await world.store.commit_one(world.close_session("s1", reason="lease_lapsed"))
    with pytest.raises(NotFound) as caught:
        await world.store.commit_one(world.heartbeat())
    assert caught.value.code == "session_lost"
    assert await world.store.open_sessions("default") == []


async def test_a_session_is_not_closed_while_its_lease_holds(world: World) -> None:
    await world.open_session()
    await world.store.commit_one(world.close_session("s1", reason="lease_lapsed"))
    session = await world.store.session("default", "s1")
    assert session is not None
    assert session.ended_at is None


async def test_a_session_that_holds_a_task_does_not_count_as_lapsed(world: World) -> None:
    task = await world.running_task()
    world.advance(31)
    assert await world.store.lapsed_sessions("default", await world.store.now(), 10) == []
    assert await world.store.load_of_sessions("default") == {"s1": 1}
    assert task.session_id == "s1"


async def test_a_registered_agent_is_known_to_every_store(world: World) -> None:
    spec = c.AgentSpec(name="coder", version="2", concurrency=4, deadline=60 * SECOND, payload_schema="{}")
    await world.register(spec, c.AgentSpec(name="tester"))
    other = await world.another_store()
    assert await other.agent("default", "coder") == spec
    assert [agent.name for agent in await other.agents("default")] == ["coder", "tester"]
    assert await other.agent("default", "unknown") is None


async def test_a_heartbeat_that_comes_after_its_tasks_end_neither_alarms_nor_revives(world: World) -> None:
    """B11: a heartbeat was under way while the attempt's end was stored."""
    task = await world.running_task()
    late = world.heartbeat(task)
    done = await world.do(world.finish(task))

    reply = await world.reply(late)

    assert reply.refusal is None, "the session is as good as before"
    assert reply.stale == (task.attempt_id,), "the worker lets go of what it has handed in already"
    assert await world.task(task) == done
    assert (await world.history(task))[-1] == "task.succeeded"
    world.advance(20)
    assert (await world.running_task()).session_id == "s1", "and keeps claiming work"
    assert await world.problems() == []
