"""`why`: who holds a task, what moves it next, and when it ends at the latest, in every status."""

from __future__ import annotations

import pytest

from endwell import TaskFailed
from endwell.model import commands as c
from endwell.model.moments import SECOND, moment
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World


async def test_why_says_that_no_worker_serves_the_task(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    why = await handle.why()
    assert why["status"] == "queued"
    assert why["holder"] is None
    assert why["waiting_for"][0]["kind"] == "no_live_worker"
    assert why["next"] == {"rule": "ends_by", "at": why["ends_by"]}
    assert why["ends_by"] == moment((await handle.task()).ends_by)
    assert why["owner"] == clerk.app.owner
    assert why["actions"] == ["task cancel", "task retry"]
    assert why["ended_at_the_latest"] == moment((await handle.task()).ends_by + 10 * SECOND)
    assert why["notes"] == [
        "no live PMO (supervisor process): no clock fires until `endwell pmo` or `endwell up` runs",
        "no live worker serves this agent: start one with `endwell worker --agents clerk`",
    ]


async def test_a_delayed_task_says_when_it_starts(clerk: World) -> None:
    handle = await clerk.submitted("clerk", delay=3600)
    why = await handle.why()
    start = moment((await handle.task()).run_at)
    assert why["waiting_for"] == [{"kind": "start_time", "id": None, "deadline": start}]
    assert why["next"] == {"rule": "start", "at": start}


async def test_a_waiting_task_says_whether_it_waits_for_a_worker_or_for_its_key(clerk: World) -> None:
    session = await clerk.silent_session("clerk")
    first = await clerk.submitted("clerk/k", 1)
    second = await clerk.submitted("clerk/k", 2)
    assert (await first.why())["waiting_for"][0]["kind"] == "worker"
    await clerk.claimed(session, "clerk")
    waiting = (await second.why())["waiting_for"][0]
    assert (waiting["kind"], waiting["id"]) == ("agent_key", first.id)


async def test_an_offered_task_says_that_it_will_be_rung_again(clerk: World) -> None:
    await clerk.silent_session("clerk")
    handle = await clerk.submitted("clerk")
    clerk.clock.advance(2)
    await (await clerk.supervisor()).dispatcher.run_once()
    why = await handle.why()
    assert (why["status"], why["next"]["rule"]) == ("dispatched", "ring_again")
    assert why["next"]["at"] == moment((await handle.task()).ring_at)


@pytest.mark.covers("S3.2")
async def test_a_running_task_says_who_holds_it(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    session = await clerk.silent_session("clerk")
    await clerk.claimed(session, "clerk")
    why = await handle.why()
    task = await handle.task()
    held = await clerk.store.session(clerk.namespace, session.id)
    assert held is not None
    assert why["holder"] == {
        "worker_id": session.id,
        "name": "silent",
        "pid": 1,
        "host": "elsewhere",
        "last_heartbeat": moment(held.heartbeat_at),
        "lease_until": moment(held.lease_until),
    }
    assert (why["next"]["rule"], why["next"]["at"]) == ("reap", moment(task.progress_by))
    assert why["ends_by"] == moment(task.ends_by)
    assert not any("last heartbeat" in note for note in why["notes"])


async def test_why_says_when_a_silent_worker_loses_the_task(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    session = await clerk.silent_session("clerk", lease_seconds=30)
    await clerk.claimed(session, "clerk")
    held = await clerk.store.session(clerk.namespace, session.id)
    assert held is not None
    heard, until = moment(held.heartbeat_at), moment(held.lease_until)

    clerk.clock.advance(20)
    silent = f"no heartbeat of its worker since {heard}: without one, the turn is reclaimed at {until}"
    why = await handle.why()
    assert silent in why["notes"]
    assert why["next"]["rule"] == "reap", "a heartbeat may still come"

    clerk.clock.advance(11)
    why = await handle.why()
    assert why["next"] == {"rule": "reclaim", "at": until}
    assert why["notes"][1:] == [
        "no live worker serves this agent: start one with `endwell worker --agents clerk`",
        f"the last heartbeat of its worker was at {heard}: the turn is reclaimed and offered again",
    ]


async def test_a_pmo_that_lives_but_does_not_tick_does_not_count(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    session = await clerk.silent_session("clerk")
    await clerk.supervisor()  # which ticks when the test says so
    gone = "no live PMO (supervisor process): no clock fires until `endwell pmo` or `endwell up` runs"
    assert (await handle.why())["notes"] == []
    clerk.clock.advance(16)  # more than three intervals, less than its lease
    await session.beat()
    assert (await handle.why())["notes"] == [gone]


async def test_why_says_that_no_worker_serves_a_task_in_every_status(clerk: World) -> None:
    """An answer or an unblocked task would have no worker."""
    handle = await clerk.submitted("clerk")
    await clerk.store.commit_one(
        c.Block(command_id="b", namespace=clerk.namespace, task_id=handle.id, reason="look", owner="ada")
    )
    assert any("no live worker serves this agent" in note for note in (await handle.why())["notes"])
    await clerk.silent_session("clerk")
    assert not any("no live worker" in note for note in (await handle.why())["notes"])


async def test_a_blocked_task_names_the_person_who_must_act(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    await clerk.store.commit_one(
        c.Block(
            command_id="b", namespace=clerk.namespace, task_id=handle.id, reason="look at it", owner="ada"
        )
    )
    why = await handle.why()
    assert (why["status"], why["owner"], why["reason"]) == ("blocked", "ada", "look at it")
    assert why["actions"] == ["task unblock", "task assign", "task cancel"]
    assert why["waiting_for"] == [{"kind": "person", "id": "ada", "deadline": why["ends_by"]}]
    assert why["ended_at_the_latest"] is not None
    assert any("ada was informed and has not accepted the task" in note for note in why["notes"])

    await handle.assign("ada")
    why = await handle.why()
    assert why["next"]["rule"] == "remind"
    assert why["waiting_for"] == [{"kind": "person", "id": "ada", "deadline": None}]
    assert why["ended_at_the_latest"] is None
    assert any("ada accepted to hold the task" in note for note in why["notes"])


async def test_an_ended_task_waits_for_nothing(clerk: World) -> None:
    await clerk.working()
    done = await clerk.submitted("clerk")
    await done.result(PATIENCE_SECONDS)
    why = await done.why()
    assert (why["next"], why["waiting_for"], why["actions"]) == ({"rule": None, "at": None}, [], [])

    late = await clerk.submitted("clerk", delay=60, deadline=10)
    clerk.clock.advance(120)
    await (await clerk.supervisor()).watchdog.run_once()
    if (await late.task()).status == "timeout":  # the worker may have been quicker
        assert (await late.why())["actions"] == ["dlq replay", "dlq abandon"]


async def test_why_names_the_earlier_effect_that_a_turn_waits_for(clerk: World) -> None:
    """Until then it shows no progress."""
    handle = await clerk.submitted("clerk")
    session = await clerk.silent_session("clerk", lease_seconds=5)
    (offer,) = await clerk.claimed(session, "clerk")
    intent = c.IntendEffect(
        command_id="i",
        namespace=clerk.namespace,
        task_id=handle.id,
        attempt_id=offer.task.attempt_id or "",
        step="1:()pay#1",
        key="pay:42",
        args_hash="a",
        timeout=60 * SECOND,
    )
    await clerk.store.commit_one(intent)
    assert (await handle.why())["waiting_for"] == [], "it is at it itself"

    clerk.clock.advance(6)
    await (await clerk.supervisor()).reclaimer.run_once()
    await clerk.claimed(await clerk.silent_session("clerk"), "clerk")
    effect = await clerk.store.effect(clerk.namespace, "pay:42")
    assert effect is not None
    assert (await handle.why())["waiting_for"] == [
        {"kind": "earlier_effect", "id": "pay:42", "deadline": moment((effect.not_after or 0) + 5 * SECOND)}
    ]


async def test_a_failed_task_says_what_went_wrong(quick_world: World) -> None:
    @quick_world.app.agent("picky", retries=0)
    async def picky(ctx: object, payload: object) -> None:
        raise ValueError("not this one")

    await quick_world.working()
    failed = await quick_world.submitted("picky")
    with pytest.raises(TaskFailed):
        await failed.result(PATIENCE_SECONDS)
    assert (await failed.why())["error"] == {
        "code": "exception",
        "type": "ValueError",
        "message": "not this one",
    }
