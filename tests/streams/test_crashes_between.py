"""A crash between any two writes: the second is repeated, and nothing happens twice."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.errors import StoreError
from endwell.model import commands as c
from tests.patience import PATIENCE_SECONDS
from tests.streams.hand import Hand
from tests.streams.streamed import Streamed
from tests.support.world import eventually, terminal


async def clerk_with_room(streamed: Streamed) -> str:
    """An agent, and the session of a worker for it that does nothing by itself."""
    world = streamed.world

    @world.app.agent("clerk")
    async def clerk(payload: Any = None) -> str:
        return "done"

    await world.registered("clerk")
    return (await world.silent_session("clerk", concurrency=3)).id


async def test_crash_between_dispatch_and_publishing(streamed: Streamed) -> None:
    await clerk_with_room(streamed)
    world, streams = streamed.world, await streamed.orchestrator()
    handle = await world.submitted("clerk", 1)
    offer = c.DispatchNext(command_id="d", namespace=world.namespace, agent="clerk", limit=1)
    assert len((await world.store.commit_one(offer)).taken) == 1
    assert await streamed.entries(streamed.names.task) == []
    assert await streams.publisher.publish_ready() == 0, "it is not dispatched a second time"
    assert await streams.publisher.republish_unclaimed() == 1
    ((_, fields),) = await streamed.entries(streamed.names.task)
    assert fields["task_id"] == handle.id
    await world.working()
    assert await handle.result(PATIENCE_SECONDS) == "done"


@pytest.mark.covers("S4.12", "T17")
async def test_crash_between_the_end_of_a_turn_and_its_acknowledgement(streamed: Streamed) -> None:
    session_id = await clerk_with_room(streamed)
    world, streams = streamed.world, await streamed.orchestrator()
    handle = await world.submitted("clerk", 1)
    await streams.publisher.publish_ready()
    ((message_id, fields),) = await streamed.read("gone-1")
    about: dict[str, Any] = {"namespace": world.namespace, "task_id": handle.id, "attempt_id": "a.0"}
    named: dict[str, Any] = {
        "session_id": session_id,
        "turn_id": fields["turn"],
        "epoch": int(fields["epoch"]),
    }
    await world.store.commit_one(c.Claim(command_id="a.0", **about, **named))
    await world.store.commit_one(c.Finish(command_id="f", result=b'"done"', result_hash="h", **about))
    await streamed.grown_old("gone-1", message_id)
    assert await streams.reclaimer.run_once() == 0
    assert await streamed.pending() == []
    history = await world.history(handle)
    assert terminal(history) == ["task.succeeded"]
    assert "task.reclaimed" not in history


async def test_crash_between_reading_an_entry_and_claiming_its_turn(streamed: Streamed) -> None:
    await clerk_with_room(streamed)
    world, streams = streamed.world, await streamed.orchestrator()
    handle = await world.submitted("clerk", 1)
    await streams.publisher.publish_ready()
    ((message_id, _),) = await streamed.read("gone-1")
    await streamed.grown_old("gone-1", message_id)
    streams.publisher.forget_published()
    await streams.reclaimer.run_once()
    await streams.publisher.republish_unclaimed()
    await world.working()
    assert await handle.result(PATIENCE_SECONDS) == "done"
    assert (await handle.task()).crash_count == 0, "no worker had begun"


@pytest.mark.covers("S4.12")
async def test_crash_before_a_handled_report_is_acknowledged(streamed: Streamed) -> None:
    hand = Hand(streamed, await streamed.orchestrator())
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    await hand.says("succeeded", attempt=attempt, output='"pressed"')
    await hand.streams.foreign.handle_reports(await hand.unacknowledged_reports())
    await hand.streams.reports.handle_left(0)
    assert await handle.result(PATIENCE_SECONDS) == "pressed"
    assert terminal(await streamed.world.history(handle)) == ["task.succeeded"]
    assert await streamed.entries(streamed.names.result) == []


@pytest.mark.covers("T17", "T19")
async def test_crash_before_the_report_of_a_failure_is_acknowledged_counts_the_failure_once(
    streamed: Streamed,
) -> None:
    """The report is handled twice: the failure counts once, and the retry is published once."""
    hand = Hand(streamed, await streamed.orchestrator())
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    await hand.says("failed", attempt=attempt, error="no paper")
    await hand.streams.foreign.handle_reports(await hand.unacknowledged_reports())
    await hand.streams.reports.handle_left(0)
    task = await handle.task()
    assert (task.status, task.retry_count) == ("queued", 1)
    assert await streamed.pending() == []

    async def is_out_again() -> bool:
        return await hand.streams.publisher.publish_ready() == 1

    await eventually(is_out_again, "its time to be tried again has come")
    ((message_id, entry),) = await streamed.entries(streamed.names.task)
    assert message_id != hand.message_id
    assert (entry["task_id"], entry["turn"]) == (handle.id, f"{handle.id}.t2")
    history = await streamed.world.history(handle)
    assert (history.count("task.retry_scheduled"), terminal(history)) == (1, [])


async def test_crash_of_a_foreign_worker_between_its_report_and_its_acknowledgement(
    streamed: Streamed,
) -> None:
    """The worker dies right after its report."""
    hand = Hand(streamed, await streamed.orchestrator())
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    await hand.says("failed", attempt=attempt, error='{"message": "no paper", "retryable": false}')
    assert len(await streamed.pending()) == 1
    await hand.heard()
    assert await streamed.pending() == []
    task = await handle.task()
    assert (task.status, task.retry_count) == ("failed", 1)
    await hand.streams.dead_letters.run_once()
    assert [letter["task_id"] for letter in await streamed.letters()] == [handle.id]


async def test_report_stays_pending_while_the_store_is_away(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(streamed, await streamed.orchestrator())
    handle = await hand.offered()
    attempt, _ = await hand.asks()
    await hand.says("succeeded", attempt=attempt, output='"pressed"')

    async def away(*_: Any) -> None:
        raise StoreError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(streamed.world.store, "commit", away)
        with pytest.raises(StoreError):
            await hand.heard()
    await hand.streams.reports.handle_left(0)
    assert await handle.result(PATIENCE_SECONDS) == "pressed"
