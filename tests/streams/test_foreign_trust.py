"""What a client of the Redis server can and cannot do to tasks: it may write anything on any stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from endwell.model import commands as c
from endwell.model.session import is_foreign
from endwell.policy import foreign as rules
from tests.patience import PATIENCE_SECONDS
from tests.streams.hand import Hand
from tests.streams.streamed import Streamed
from tests.support.world import eventually


@pytest.fixture
async def hand(streamed: Streamed) -> Hand:
    return Hand(streamed, await streamed.orchestrator())


async def forge(streamed: Streamed, task: Any, message_id: str = "1-1", **fields: Any) -> None:
    """Write a result that names what the relay has published about a running task."""
    said = {
        "task_id": task.id,
        "turn": task.turn_id,
        "epoch": task.epoch,
        "worker_id": "mallory-1",
        "message_id": message_id,
        "attempt": task.attempt_id,
        **fields,
    }
    await streamed.add(streamed.names.result, **said)


async def register(streamed: Streamed, agent: str) -> None:
    """As one of our own workers elsewhere registers what it serves."""
    world = streamed.world
    command_id = world.app.runtime.ids.new()
    specs = (c.AgentSpec(name=agent),)
    await world.store.commit_one(
        c.RegisterAgents(command_id=command_id, namespace=world.namespace, agents=specs)
    )


FORGERIES = (
    {"status": "succeeded", "output": '"stolen"'},
    {"status": "failed", "error": "spite"},
    {"status": "returned"},
    {"status": "progress", "note": "all is well"},
)


@pytest.mark.parametrize("said", FORGERIES, ids=lambda said: said["status"])
async def test_forged_result_changes_nothing_for_a_task_of_our_own_worker(
    streamed: Streamed, said: dict[str, str]
) -> None:
    release = asyncio.Event()

    @streamed.app.agent("clerk")
    async def clerk() -> str:
        await release.wait()
        return "done"

    pmo = await streamed.supervised()
    worker = await streamed.world.working()
    handle = await streamed.world.submitted("clerk")
    task = await streamed.world.in_status(handle, "running")
    session = await streamed.world.store.session(streamed.world.namespace, task.session_id or "")
    assert session is not None
    for name in ("mallory-1", session.name, worker.name):
        await forge(streamed, task, worker_id=name, **said)
        await forge(streamed, task, worker_id=name, status="leaving")

    async def is_heard() -> bool:
        return not await streamed.entries(streamed.names.result)

    await eventually(is_heard, "the orchestrator has read every forged result")
    now = await handle.task()
    assert (now.status, now.attempt_id, now.version) == ("running", task.attempt_id, task.version)
    assert pmo.streams is not None
    release.set()
    assert await handle.result(PATIENCE_SECONDS) == "done"


async def test_foreign_worker_cannot_report_on_the_turn_of_another_foreign_worker(hand: Hand) -> None:
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    task = await handle.task()
    await forge(hand.streamed, task, hand.message_id, status="succeeded", output="1")
    await hand.heard()
    now = await handle.task()
    assert (now.status, now.version) == ("running", task.version)
    assert await hand.grant() == attempt, "the holder keeps its grant"
    assert len(await hand.streamed.pending()) == 1, "and its entry, which is its lease"


@pytest.mark.parametrize("reporter", ["hand-1", "hand-2"])
async def test_refused_report_cannot_remove_the_entry_of_another_turn(hand: Hand, reporter: str) -> None:
    """A foreign worker's entry is its lease: without it, its turn would be taken back as a crash."""
    first = await hand.offered()
    await hand.asks()
    held = hand.message_id
    other = Hand(hand.streamed, hand.streams, "hand-2")
    await other.offered()
    other.name, other.message_id = reporter, held
    for status in ("succeeded", "passed", "returned"):
        await other.says(status, attempt="hand-2:1-1", output="1", tool_name="press")
        await hand.heard()
    assert held in [message_id for message_id, _, _ in await hand.streamed.pending()]
    assert (await first.task()).status == "running"


@pytest.mark.parametrize("status", ["claimed", "passed", "succeeded", "returned"])
async def test_report_leaves_an_entry_alone_that_another_worker_has_read(hand: Hand, status: str) -> None:
    """The entry is the lease of the worker that is about to claim its turn."""
    handle = await hand.offered()
    stranger = Hand(hand.streamed, hand.streams, "stranger-1")
    stranger.task, stranger.message_id = hand.task, hand.message_id
    await stranger.says(status, attempt="stranger-1:1-1", output="1")
    await hand.heard()
    attempt, granted = await hand.asks()
    assert granted == attempt
    assert [message_id for message_id, _, _ in await hand.streamed.pending()] == [hand.message_id]
    for _ in range(3):
        await hand.streams.foreign.renew_leases()
    assert (await handle.task()).attempt_id == attempt


async def test_entry_with_another_agent_than_its_task_is_void(streamed: Streamed) -> None:
    """A worker would claim a task that it cannot run, again and again, until the crash limit ended it."""

    @streamed.app.agent("clerk")
    async def clerk() -> str:
        return "done"

    streams = await streamed.orchestrator()
    await streamed.world.working()
    world = streamed.world
    await register(streamed, "painter")
    handle = await world.submitted("painter")
    task = await handle.task()
    forged = {
        "task_id": task.id,
        "tool_name": "clerk",
        "payload": "null",
        "turn": f"{task.id}.t1",
        "epoch": 1,
    }
    message_id = await streamed.put(**forged)

    async def is_read() -> bool:
        left = [each for each, _ in await streamed.entries(streamed.names.task)]
        return message_id not in left and not await streamed.pending()

    await eventually(is_read, "the worker has dropped the forged entry")
    now = await handle.task()
    assert (now.status, now.version, now.crash_count) == ("queued", task.version, 0)
    assert streams.foreign is not None


async def test_foreign_worker_is_granted_only_turns_of_agents_that_it_registered(hand: Hand) -> None:
    await hand.offered()
    await register(hand.streamed, "vault")
    handle = await hand.streamed.world.submitted("vault")
    task = await handle.task()
    hand.task = {"task_id": task.id, "turn": f"{task.id}.t1", "epoch": "1"}
    _, granted = await hand.asks()
    assert granted == ""
    assert (await handle.task()).status == "queued"


async def test_turn_that_a_worker_may_not_serve_goes_to_the_next_worker(hand: Hand) -> None:
    """The claim is not denied: a denial carries the name of the offer, and would stop the next worker too."""
    handle = await hand.published()
    stranger = Hand(hand.streamed, hand.streams, "stranger-1")
    await stranger.read()
    _, granted = await stranger.asks()
    assert granted == ""
    assert (await handle.task()).status == "queued"

    async def is_offered_again() -> bool:
        entries = [each for each, _ in await hand.streamed.entries(hand.streamed.names.task)]
        return bool(entries) and stranger.message_id not in entries

    await eventually(is_offered_again, "the turn is on the stream again, in an entry of its own")
    await hand.read()
    attempt, granted = await hand.asks()
    assert granted == attempt


async def test_foreign_workers_may_not_serve_agents_of_our_own_unless_listed(streamed: Streamed) -> None:
    streams = await streamed.orchestrator()
    await register(streamed, "clerk")
    redis, names = streamed.redis, streamed.names

    async def served(name: str) -> list[str]:
        await redis.ask("SADD", names.workers, name)
        await redis.ask("SET", names.worker_key(name), '{"tools":["clerk","press"]}', "EX", 60)
        await streams.foreign.renew_leases()
        sessions = await streamed.world.store.open_sessions(streamed.world.namespace)
        return next(each.agents.split() for each in sessions if each.name == name and is_foreign(each))

    assert await served("one") == ["press"]
    streams.foreign._allowed = ("*", "clerk")
    assert await served("two") == ["clerk", "press"]
    streams.foreign._allowed = ("press",)
    assert await served("three") == ["press"]
    streams.foreign._allowed = ()
    assert await served("four") == []


async def test_own_agent_is_denied_to_a_foreign_worker_that_listed_its_name_earlier(hand: Hand) -> None:
    await hand.offered()
    await register(hand.streamed, "press")
    _, granted = await hand.asks()
    assert granted == ""


async def test_foreign_agents_setting_binds_workers_with_older_sessions(hand: Hand) -> None:
    handle = await hand.offered()
    hand.streams.foreign._allowed = ()  # as after a restart with `queue.foreign_agents = []`
    _, granted = await hand.asks()
    assert granted == ""
    assert (await handle.task()).status == "queued"


async def test_names_from_the_server_register_a_bounded_number_of_agents_that_expire(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_AGENTS", 5)
    streams, world = await streamed.orchestrator(), streamed.world
    tools = ",".join(f'"t{n}"' for n in range(20))
    for worker in ("a", "b"):
        await streamed.redis.ask("SADD", streamed.names.workers, worker)
        await streamed.redis.ask("SET", streamed.names.worker_key(worker), f'{{"tools":[{tools}]}}', "EX", 60)
        await streams.foreign.renew_leases()
    specs = await world.store.agents(world.namespace)
    assert [spec.name for spec in specs] == [f"t{n}" for n in range(5)]
    now = await world.store.now()
    assert all(now < (spec.foreign_until or 0) <= now + rules.REGISTERED_FOR for spec in specs)


async def test_expired_agent_of_foreign_workers_is_forgotten_once_no_task_waits_for_it(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "REGISTERED_FOR", -2)
    world, redis, names = hand.streamed.world, hand.streamed.redis, hand.streamed.names
    handle = await hand.offered()
    await redis.ask("DEL", names.worker_key(hand.name))
    await hand.streams.foreign._admit_workers([])
    assert await world.store.agent(world.namespace, "press") is not None, "a task waits for it"
    await handle.cancel()
    await hand.streams.foreign._admit_workers([])
    assert await world.store.agent(world.namespace, "press") is None


async def end_by_cancel(hand: Hand, handle: Any) -> None:
    await handle.cancel()


async def end_by_reclaim(hand: Hand, handle: Any) -> None:
    await hand.streamed.grown_old(hand.name, hand.message_id)
    await hand.streams.reclaimer.run_once()


async def end_by_report(hand: Hand, handle: Any) -> None:
    await hand.says("failed", attempt=(await handle.task()).attempt_id, error="no paper")
    await hand.heard()


async def end_by_hand_back(hand: Hand, handle: Any) -> None:
    await hand.says("returned", attempt=(await handle.task()).attempt_id)
    await hand.heard()


async def end_by_sign_off(hand: Hand, handle: Any) -> None:
    await hand.streamed.add(hand.streamed.names.result, status="leaving", worker_id=hand.name)
    await hand.heard()


async def end_by_block(hand: Hand, handle: Any) -> None:
    world = hand.streamed.world
    block = c.Block(
        command_id="block", namespace=world.namespace, task_id=handle.id, reason="clock_rule_failed"
    )
    await world.store.commit_one(block)


ENDS = (end_by_cancel, end_by_reclaim, end_by_report, end_by_hand_back, end_by_sign_off, end_by_block)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_every_end_of_an_attempt_revokes_its_grant(hand: Hand, end: Any) -> None:
    handle = await hand.offered()
    attempt, granted = await hand.asks()
    assert granted == attempt
    await end(hand, handle)
    await hand.streams.foreign.grants.revoke_all_lost()
    assert (await handle.task()).status in ("cancelled", "queued", "blocked")
    assert await hand.grant() != attempt
    assert await hand.streamed.redis.ask("HGETALL", hand.streamed.names.grants) == []


async def test_orchestrator_revokes_the_grant_of_a_cancelled_task_as_soon_as_it_is_rung(
    streamed: Streamed,
) -> None:
    pmo = await streamed.supervised()
    assert pmo.streams is not None
    redis, names = streamed.redis, streamed.names
    await redis.ask("SADD", names.workers, "hand-1")
    await redis.ask("SET", names.worker_key("hand-1"), '{"tools":["press"]}', "EX", 60)
    world = streamed.world

    async def is_known() -> bool:
        return await world.store.agent(world.namespace, "press") is not None

    await eventually(is_known, "press is registered")
    handle = await world.submitted("press")
    found: list[tuple[str, dict[str, str]]] = []

    async def is_offered() -> bool:
        found.extend(await streamed.read("hand-1"))
        return bool(found)

    await eventually(is_offered, "the turn is on the stream")
    ((message_id, task),) = found
    said = {key: task[key] for key in ("task_id", "turn", "epoch")}
    await streamed.add(names.result, **said, worker_id="hand-1", message_id=message_id, status="claimed")
    key = names.grant_key(task["turn"], int(task["epoch"]))

    async def has_grant() -> bool:
        return await redis.ask("GET", key) is not None

    await eventually(has_grant, "the turn is granted")
    pmo.streams._upkeep_seconds = 3600.0
    await handle.cancel()

    async def is_revoked() -> bool:
        return await redis.ask("GET", key) is None

    await eventually(is_revoked, "the grant is revoked")


async def test_refused_report_revokes_the_grant_of_its_lost_attempt(hand: Hand) -> None:
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    await handle.cancel()
    assert await hand.grant() == attempt, "no orchestrator has looked yet"
    await hand.says("progress", attempt=attempt)
    await hand.heard()
    assert await hand.grant() == ""


async def test_sign_off_counts_neither_a_crash_nor_a_delivery(hand: Hand) -> None:
    handle = await hand.offered()
    attempt, granted = await hand.asks()
    assert granted == attempt
    await end_by_sign_off(hand, handle)
    task = await handle.task()
    assert (task.status, task.crash_count, task.retry_count, task.dispatch_count) == ("queued", 0, 0, 1)
    await hand.streams.foreign.renew_leases()
    sessions = await hand.streamed.world.store.open_sessions(hand.streamed.world.namespace)
    assert [each.name for each in sessions if is_foreign(each)] == []
    assert await hand.streamed.redis.ask("SMEMBERS", hand.streamed.names.workers) == []
    other = Hand(hand.streamed, hand.streams, "hand-2")
    await other.serves()
    await hand.streams.foreign.renew_leases()
    assert await hand.streams.publisher.publish_ready() == 1
    await other.read()
    await other.asks()
    assert (await handle.task()).dispatch_count == 1


async def test_worker_that_returns_a_turn_and_stays_is_stopped_by_the_runaway_guard(hand: Hand) -> None:
    """Each return counts as a delivery: otherwise such a worker would continue until `ends_by`."""
    handle = await hand.offered()
    for number in range(1, 10):
        attempt, granted = await hand.asks()
        assert granted == attempt
        task = await handle.task()
        assert (task.dispatch_count, task.crash_count, task.retry_count) == (number, 0, 0)
        await end_by_hand_back(hand, handle)
        await hand.streams.foreign.renew_leases()
        assert await hand.streams.publisher.publish_ready() == 1
        await hand.read()
    await hand.asks()
    pmo = hand.streamed.world.node.pmo()
    await pmo.watchdog.run_once()
    task = await handle.task()
    assert (task.status, task.reason) == ("failed", "runaway_guard")


async def test_progress_of_a_foreign_worker_is_logged_with_its_note(hand: Hand) -> None:
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    await hand.says("progress", attempt=attempt, note="half of the pages")
    await hand.heard()
    assert await hand.grant() == attempt
    (fact,) = await hand.streamed.world.facts(handle, "task.heartbeat")
    assert fact.note == "half of the pages"
