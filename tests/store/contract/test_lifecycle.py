"""Tasks through the one door: from asking to the end, by every way."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from endwell.errors import NotFound, TaskEnded
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.store.rows import LITTLE_BYTES
from tests.store.world import BROKEN, HOPELESS, World


@pytest.mark.covers("S4.48", "S4.49", "S4.50", "S4.12")
async def test_a_task_is_asked_for_claimed_and_finished(world: World) -> None:
    task = await world.running_task(payload=b'{"ticket":7}')
    assert task.status == "running"

    done = await world.do(world.finish(task, b'"patch"'))

    assert (done.status, done.reason, done.clock_at) == ("succeeded", None, None)
    assert (await world.store.card("default", done.payload_card)).content == b'{"ticket":7}'
    assert (await world.store.card("default", done.deliverable_card or "")).content == b'"patch"'
    assert await world.task(task) == done
    assert await world.history(task) == [
        "task.created",
        "task.dispatched",
        "task.claimed",
        "turn.ended",
        "task.succeeded",
    ]
    assert [turn.outcome for turn in await world.store.turns_of_task("default", task.id)] == ["success"]


@pytest.mark.covers("S3.2", "S3.7")
async def test_a_claim_hands_out_the_payload_and_a_new_attempt_each_time(world: World) -> None:
    await world.open_session()
    await world.queued_task(payload=b'{"n":1}')
    first = (await world.store.commit_one(world.claim_next())).taken[0]
    assert first.payload == b'{"n":1}'
    await world.do(world.to(c.HandBack, first.task))

    second = (await world.store.commit_one(world.claim_next())).taken[0]

    assert second.task.id == first.task.id
    assert second.task.attempt_id != first.task.attempt_id


async def test_work_handed_back_costs_the_task_nothing(world: World) -> None:
    task = await world.running_task()
    back = await world.do(world.to(c.HandBack, task))
    again = await world.claim(back)
    assert (back.status, back.retry_count, again.dispatch_count) == ("queued", 0, task.dispatch_count)


async def test_a_failed_turn_is_tried_again_later(world: World) -> None:
    task = await world.running_task()
    waiting = await world.do(world.fail(task))
    assert (waiting.status, waiting.retry_count) == ("queued", 1)
    assert await world.claimed() == []

    world.advance(3600)
    await world.store.commit_one(world.heartbeat())

    (again,) = await world.claimed()
    assert again.id == task.id
    assert again.turn_number == 2


@pytest.mark.covers("S4.45", "S4.51", "S4.53")
async def test_a_hopeless_failure_ends_in_the_dead_letters(world: World) -> None:
    task = await world.running_task()
    ended = await world.do(world.fail(task, HOPELESS))
    assert ended.status == "failed"
    assert (await world.history(task))[-2:] == ["task.failed", "task.dlq"]
    letter = await world.store.dead_letter("default", task.id)
    assert (letter.reason, letter.status) == (ended.reason, "open")


async def test_a_dead_letter_is_replayed_once_as_a_new_task(world: World) -> None:
    dead = await world.do(world.fail(await world.running_task(), HOPELESS))
    card = await world.store.card("default", dead.payload_card)
    again = world.to(c.Replay, dead, new_task_id=world.new_id(), payload=card.content, payload_hash=card.hash)

    new = await world.do(again)

    assert (new.status, new.replay_of) == ("queued", dead.id)
    assert (await world.task(dead)).superseded_by == new.id
    assert (await world.store.dead_letter("default", dead.id)).status == "replayed"
    second = world.to(
        c.Replay, dead, new_task_id=world.new_id(), payload=card.content, payload_hash=card.hash
    )
    refusal = (await world.reply(second)).refusal
    assert refusal is not None
    assert refusal.code == "dead_letter_closed"


async def test_a_dead_letter_can_be_abandoned(world: World) -> None:
    dead = await world.do(world.fail(await world.running_task(), HOPELESS))
    await world.do(world.to(c.Abandon, dead))
    assert (await world.store.dead_letter("default", dead.id)).status == "abandoned"


@pytest.mark.parametrize("stage", ["queued", "dispatched", "running", "waiting"])
async def test_a_task_can_be_cancelled_at_any_stage(world: World, stage: str) -> None:
    await world.open_session()
    task = await world.queued_task(approval_within=60 * SECOND if stage == "waiting" else None)
    if stage == "dispatched":
        await world.store.commit_one(world.dispatch_next())
    if stage == "running":
        await world.claim(task)
    ended = await world.do(world.to(c.Cancel, task))
    assert (ended.status, ended.dead_letter) == ("cancelled", None)
    with pytest.raises(TaskEnded):
        await world.do(world.to(c.Cancel, task))


@pytest.mark.covers("S4.52", "T19")
async def test_a_reclaimed_turn_is_redelivered_under_the_same_task(world: World) -> None:
    task = await world.running_task()
    world.advance(31)
    back = await world.do(world.to(c.Reclaim, task))
    assert (back.status, back.crash_count) == ("queued", 1)
    await world.open_session("s2")
    again = await world.claim(back, "s2")
    assert (again.id, again.turn_id) == (task.id, task.turn_id)
    assert again.epoch > task.epoch
    assert "task.reclaimed" in await world.history(task)


@pytest.mark.covers("S2.1", "T12")
async def test_the_dispatch_counter_rises_with_each_dispatch_and_is_never_reset(world: World) -> None:
    await world.open_session(lease=36_000)
    task = await world.queued_task()
    assert task.dispatch_count == 0
    (offer,) = (await world.store.commit_one(world.dispatch_next())).taken
    assert offer.task.dispatch_count == 1
    (held,) = await world.claimed()
    await world.do(world.fail(held))
    world.advance(3600)
    (again,) = await world.claimed()
    assert again.dispatch_count == 2
    await world.do(world.to(c.HandBack, again))
    assert (await (await world.another_store()).task("default", task.id)).dispatch_count == 2


async def test_a_dispatched_turn_lies_in_the_inbox_until_it_ends(world: World) -> None:
    await world.open_session()
    await world.queued_task()
    await world.store.commit_one(world.dispatch_next())
    assert [tuple(row) for row in await world.database.sql("SELECT status FROM agent_inbox")] == [
        ("pending",)
    ]
    (task,) = await world.claimed()
    assert [tuple(row) for row in await world.database.sql("SELECT status FROM agent_inbox")] == [
        ("processing",)
    ]
    await world.do(world.finish(task))
    assert [tuple(row) for row in await world.database.sql("SELECT status FROM agent_inbox")] == [
        ("consumed",)
    ]


async def test_a_blocked_turn_leaves_nothing_in_the_inbox(world: World) -> None:
    task = await world.queued_task()
    await world.store.commit_one(world.dispatch_next())
    await world.do(world.to(c.Block, task, reason="look_at_it"))
    assert [tuple(row) for row in await world.database.sql("SELECT status FROM agent_inbox")] == [
        ("skipped",)
    ]


async def test_an_approval_is_asked_for_given_and_kept(world: World) -> None:
    task = await world.queued_task(approval_within=60 * SECOND)
    assert task.status == "waiting_approval"
    assert (await world.do(world.to(c.Approve, task, actor="ada"))).status == "queued"
    rows = await world.database.sql("SELECT decision, decided_by FROM approvals")
    assert [tuple(row) for row in rows] == [("approved", "ada")]


async def test_an_approval_is_asked_for_again_after_a_person_held_the_task(world: World) -> None:
    task = await world.queued_task(approval_within=60 * SECOND)
    await world.do(world.to(c.Block, task, reason="look_at_it"))
    again = await world.do(world.to(c.RunNow, task))
    assert again.status == "waiting_approval"
    rows = await world.database.sql("SELECT decision FROM approvals")
    assert [tuple(row) for row in rows] == [(None,)]


async def test_a_suspended_turn_waits_and_goes_on_with_the_answer(world: World) -> None:
    task = await world.suspended_task("look")
    back = await world.do(world.answer(task, "look"))
    assert (back.status, back.turn_id) == ("queued", task.turn_id)
    rows = await world.database.sql("SELECT wait_status, result_card FROM turn_waiting_tools")
    assert [tuple(row) for row in rows] == [("applied", world.call(task, "look").tool_call_id)]


async def test_a_clock_that_passed_is_found_and_ends_the_task(world: World) -> None:
    task = await world.queued_task(deadline=60 * SECOND)
    assert await world.store.due("default", await world.store.now(), (0, ""), 10) == []
    world.advance(61)
    now = await world.store.now()
    ((task_id, clock_at),) = await world.store.due("default", now, (0, ""), 10)
    assert (task_id, clock_at) == (task.id, task.ends_by)
    assert await world.store.due("default", now, (clock_at, task_id), 10) == []

    ended = await world.do(world.to(c.ClockFired, task))

    assert (ended.status, ended.reason, ended.dead_letter) == ("timeout", "ends_by", "open")


async def test_a_command_to_nobody_is_refused(world: World) -> None:
    command = c.Cancel(command_id=world.new_id(), namespace="default", task_id="unknown")
    with pytest.raises(NotFound):
        await world.do(command)


async def test_namespaces_do_not_see_each_other(world: World) -> None:
    task = await world.queued_task()
    other = c.Cancel(command_id=world.new_id(), namespace="other", task_id=task.id)
    with pytest.raises(NotFound):
        await world.do(other)
    assert await world.store.find_task("other", task.id) is None


async def test_after_a_commit_it_is_said_whom_it_concerns(world: World) -> None:
    task = await world.running_task()
    assert world.bells == {"work:default:coder"}
    await world.do(world.finish(task))
    assert "ended:default" in world.bells


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_offer_rings_for_workers_unless_a_stream_brings_it_to_them(
    world: World, is_streamed: bool
) -> None:
    await world.queued_task()
    world.bells.clear()
    await world.reply(replace(world.dispatch_next(), is_streamed=is_streamed))
    assert world.bells == (set() if is_streamed else {"work:default:coder"})


async def test_work_on_a_channel_of_its_own_rings_by_that_channel(world: World) -> None:
    await world.queued_task(channel="ops")
    assert world.bells == {"work:default:coder/ops"}


async def test_questions_about_many_tasks_are_answered(world: World) -> None:
    done = await world.do(world.finish(await world.running_task()))
    waiting = await world.queued_task(agent="tester", delay=60 * SECOND)
    store = world.store
    assert {t.id for t in await store.tasks_by_ids("default", [done.id, waiting.id, "none"])} == {
        done.id,
        waiting.id,
    }
    results = await store.results_by_ids("default", [done.id, waiting.id, "none"])
    assert {task.id: content for task, content in results} == {done.id: b'"done"', waiting.id: None}
    assert [t.id for t in await store.tasks_page("default", limit=10)] == [waiting.id, done.id]
    assert [t.id for t in await store.tasks_page("default", status="succeeded")] == [done.id]
    assert [t.id for t in await store.tasks_page("default", agent="tester", before="zzz")] == [waiting.id]
    assert await store.counts_by_status("default") == {"queued": 1, "succeeded": 1}
    assert await store.known_namespaces() == ["default"]
    now = await store.now()
    assert await store.ready_since("default", "tester", now) is None
    assert [s.id for s in await store.open_sessions("default")] == ["s1"]
    assert await store.load_of_sessions("default") == {}


async def test_a_large_result_is_left_where_it_is_until_it_is_wanted(world: World) -> None:
    """A caller may wait for thousands of them at once."""
    sizes = (LITTLE_BYTES, LITTLE_BYTES + 1)
    tasks = [await world.do(world.finish(await world.running_task(), b"7" * size)) for size in sizes]
    results = await world.store.results_by_ids("default", [task.id for task in tasks])
    read = {task.id: content for task, content in results}
    assert [read[task.id] for task in tasks] == [b"7" * LITTLE_BYTES, None]


async def test_an_error_is_kept_with_the_task(world: World) -> None:
    failed = await world.do(world.fail(await world.running_task()))
    assert BROKEN.message in (failed.error or "")
    assert await world.problems() == []
