"""Foreign workers know only Redis and docs/protocol.md, and obey the same rules as our own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from endwell.model import commands as c
from endwell.streams.orchestrator.foreign import ForeignWorkers
from tests.patience import PATIENCE_SECONDS
from tests.streams.hand import Hand
from tests.support.world import terminal


async def test_only_the_attempt_in_the_grant_can_end_the_turn(hand: Hand) -> None:
    handle = await hand.offered()
    attempt, granted = await hand.asks()
    assert granted == attempt
    assert (await handle.task()).attempt_id == attempt
    await hand.says("succeeded", attempt="other-1:1-1", output='"stolen"')
    await hand.heard()
    assert (await handle.task()).status == "running"
    await hand.says("succeeded", attempt=attempt, output='"pressed"')
    await hand.heard()
    assert await handle.result(PATIENCE_SECONDS) == "pressed"
    assert await hand.grant() == ""
    assert await hand.streamed.pending() == [], "the orchestrator acknowledges, should the worker not"
    assert terminal(await hand.streamed.world.history(handle)) == ["task.succeeded"]


async def test_two_workers_that_claim_one_turn_get_one_grant(hand: Hand) -> None:
    handle = await hand.offered()
    other = Hand(hand.streamed, hand.streams, "hand-2")
    other.task, other.message_id = hand.task, hand.message_id
    attempt, granted = await hand.asks()
    theirs, told = await other.asks()
    assert (granted, told) == (attempt, attempt)
    assert theirs != attempt
    assert (await handle.task()).attempt_id == attempt


async def test_claim_of_a_turn_that_has_ended_is_denied(hand: Hand) -> None:
    handle = await hand.offered()
    await handle.cancel()
    _, granted = await hand.asks()
    assert granted == "-"
    assert (await handle.task()).status == "cancelled"


async def test_claim_that_is_handled_twice_is_granted_as_before(hand: Hand) -> None:
    """As after a crash between the store's commit and the grant."""
    handle = await hand.offered()
    await hand.says("claimed")
    entries = await hand.streams._reader.read(10)
    await hand.streams.reports.handle(entries)
    first = await hand.grant()
    await hand.streamed.redis.ask(
        "DEL", hand.streamed.names.grant_key(hand.task["turn"], int(hand.task["epoch"]))
    )
    await hand.streams.reports.handle(entries)
    assert await hand.grant() == first == (await handle.task()).attempt_id


async def test_output_that_is_not_json_fails_the_turn(hand: Hand) -> None:
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    await hand.says("succeeded", attempt=attempt, output="{not json")
    await hand.heard()
    task = await handle.task()
    assert (task.status, task.retry_count) == ("queued", 1)
    assert "bad_result" in (task.error or "")


UNSTORABLE = (b'"' + b"x" * 2_200_000 + b'"', b'"\\ud800"', b"[" * 9_000 + b"]" * 9_000, b'{"a":1,"a":2}')


@pytest.mark.parametrize("output", UNSTORABLE, ids=("too large", "half a surrogate", "too deep", "key twice"))
async def test_output_that_cannot_be_stored_ends_the_task_without_another_execution(
    hand: Hand, output: bytes
) -> None:
    """Another execution would do the tool's side effects again, and end the same way."""
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    await hand.says("succeeded", attempt=attempt, output=output)
    await hand.heard()
    task = await handle.task()
    assert (task.status, task.retry_count, task.reason) == ("failed", 1, "result_not_storable")


@pytest.mark.parametrize("status", ["succeeded", "failed", "progress"])
async def test_report_with_text_that_is_not_utf8_is_handled(hand: Hand, status: str) -> None:
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    text = "größer".encode("latin-1")
    await hand.says(status, attempt=attempt, output=b'"' + text + b'"', error=text, note=text)
    await hand.heard()
    assert await hand.streamed.letters() == []
    task, history = await handle.task(), await hand.streamed.world.history(handle)
    if status == "progress":
        assert (task.status, history[-1]) == ("running", "task.heartbeat")
    else:
        assert (task.status, task.retry_count) == ("queued", 1), "it is tried again"
        assert ("not UTF-8" if status == "succeeded" else "gr\ufffd\ufffder") in (task.error or "")


async def test_report_without_required_fields_becomes_a_dead_letter(hand: Hand) -> None:
    await hand.streamed.add(hand.streamed.names.result, status="succeeded", task_id="t")
    await hand.heard()
    (letter,) = await hand.streamed.letters()
    assert (letter["reason"], letter["task_id"]) == ("missing_fields", "t")
    assert await hand.streamed.entries(hand.streamed.names.result) == []


@pytest.mark.covers("S4.16", "S4.17")
async def test_heartbeat_of_an_entry_renews_the_lease_and_adds_no_entry(hand: Hand) -> None:
    handle = await hand.offered()
    await hand.asks()
    names, redis, world = hand.streamed.names, hand.streamed.redis, hand.streamed.world
    await redis.ask("DEL", names.worker_key(hand.name))
    task = await handle.task()
    before = await world.store.session(world.namespace, task.session_id or "")
    entries = await hand.streams.streams.stream_lengths()
    hand.streams.foreign._progress_seconds = 0.0
    grant = names.grant_key(task.turn_id or "", task.epoch)
    await redis.ask("EXPIRE", grant, 5)
    await redis.ask("XCLAIM", names.task, "cg:workers", hand.name, 0, hand.message_id, "JUSTID")
    await hand.streams.foreign.renew_leases()
    assert int(await redis.ask("TTL", grant)) > 5, "the grant of a turn that is in work does not lapse"
    after = await world.store.session(world.namespace, task.session_id or "")
    assert before is not None
    assert after is not None
    assert after.lease_until > before.lease_until
    assert await hand.streams.streams.stream_lengths() == entries
    assert "task.heartbeat" in await world.history(handle)


async def test_idle_entry_counts_as_no_progress(hand: Hand) -> None:
    """A worker whose tool hangs stops its heartbeats: its turn must be reaped, however long its lease is."""
    world, settings = hand.streamed.world, hand.streamed.world.app.settings
    quick = replace(settings, pmo=replace(settings.pmo, active_reap_seconds=10.0))
    foreign = ForeignWorkers(
        world.node.make_actor("pmo"), world.app.runtime.clock, hand.streams.streams, quick
    )
    foreign._progress_seconds = 0.0
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    await hand.streamed.grown_old(hand.name, hand.message_id, seconds=20)
    await foreign.renew_leases()
    assert "task.heartbeat" not in await world.history(handle), "it was idle for too long"
    assert (await handle.task()).attempt_id == attempt, "its lease of 60 seconds holds"
    await hand.streamed.grown_old(hand.name, hand.message_id, seconds=5)
    await foreign.renew_leases()
    assert (await world.history(handle))[-1] == "task.heartbeat"


@pytest.mark.covers("S4.21", "S4.24", "S4.25", "S4.26", "S4.27", "S4.28", "S4.52", "T17", "T19")
async def test_turn_that_a_foreign_worker_left_alone_is_reclaimed_and_done_by_another(hand: Hand) -> None:
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    assert await hand.streams.reclaimer.run_once() == 0, "it is fresh"
    message_id = hand.message_id
    await hand.streamed.grown_old(hand.name, message_id)
    assert await hand.streams.reclaimer.run_once() == 1
    (fact,) = await hand.streamed.world.facts(handle, "task.reclaimed")
    assert (fact.old_consumer, fact.message_id) == (hand.name, message_id)
    assert fact.new_consumer == hand.streams.consumer
    assert await hand.streamed.pending() == []

    other = Hand(hand.streamed, hand.streams, "hand-2")
    await other.serves()
    await hand.streams.publisher.publish_ready()
    await other.read()
    assert other.task["turn"] == hand.task["turn"]
    assert other.message_id != message_id
    theirs, granted = await other.asks()
    assert granted == theirs
    await hand.says("succeeded", attempt=attempt, output='"late"')
    await hand.streamed.redis.ask("XACK", hand.streamed.names.task, "cg:workers", message_id)
    await hand.heard()
    assert [consumer for _, consumer, _ in await hand.streamed.pending()] == ["hand-2"]
    await other.says("succeeded", attempt=theirs, output='"mine"')
    await other.heard()
    assert await handle.result(PATIENCE_SECONDS) == "mine"
    assert terminal(await hand.streamed.world.history(handle)) == ["task.succeeded"]


async def test_tool_with_an_impossible_name_is_not_registered(hand: Hand) -> None:
    names, redis = hand.streamed.names, hand.streamed.redis
    await redis.ask("SADD", names.workers, "odd", "broken")
    await redis.ask("SET", names.worker_key("odd"), '{"tools":["No Name!", "fine"], "slots": 0}')
    await redis.ask("SET", names.worker_key("broken"), b"\xff")
    await hand.streams.foreign.renew_leases()
    world = hand.streamed.world
    assert [spec.name for spec in await world.store.agents(world.namespace)] == ["fine"]
    assert await redis.ask("SMEMBERS", names.workers) == [b"odd"]


async def test_report_cannot_end_a_turn_of_our_own_worker(hand: Hand) -> None:
    """A report counts only for the attempt that holds the turn, and only from its holder."""
    handle = await hand.offered()
    _, granted = await hand.asks()
    await hand.says("failed", attempt=f"{granted}x", error="spite")
    await hand.heard()
    history = await hand.streamed.world.history(handle)
    assert history[-1] == "write.refused"
    assert isinstance((await hand.streamed.world.facts(handle, "write.refused"))[0].command, str)
    assert c.FailTurn.__name__ == (await hand.streamed.world.facts(handle, "write.refused"))[0].command
