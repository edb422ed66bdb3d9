"""The inside of a turn as the stores keep it: steps, effects, answers, approvals, children."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from endwell.errors import Refused, StaleAttempt, WrongStatus
from endwell.model import commands as c
from endwell.model.card import record_id, records_between
from endwell.model.commands import MarkRestored
from endwell.model.inside import inside_of
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task, waits_of
from endwell.policy.ledger import AllowExecute, LedgerAnswer, Rejected, ReturnRecordedResult, WaitOtherWorker
from endwell.store.contract import Store
from tests.store.world import BROKEN, HOPELESS, World

PAY = "1:()pay#1"


def _content(content: bytes = b"1") -> dict[str, Any]:
    return {"content": content, "content_hash": hashlib.sha256(content).hexdigest()}


def _record(world: World, task: Task, step: str, content: bytes = b"1") -> Any:
    return world.to(c.RecordStep, task, step=step, **_content(content))


def _intend(world: World, task: Task, key: str = "pay:1", args: str = "args") -> Any:
    return world.to(c.IntendEffect, task, step=PAY, key=key, args_hash=args, timeout=10 * SECOND)


async def _asked(world: World, task: Task, store: Store | None = None, **options: str) -> LedgerAnswer | None:
    return (await (store or world.store).commit_one(_intend(world, task, **options))).ledger


async def test_recorded_steps_are_found_in_one_question_by_their_run(world: World) -> None:
    task = await world.running_task()
    for number in range(3):
        await world.do(_record(world, task, f"1:()plan#{number}", f'"{number}"'.encode()))
    found = await world.store.cards_between("default", *records_between(task.id, 1))
    assert {card.id: card.content for card in found} == {
        record_id(task.id, f"1:()plan#{number}"): f'"{number}"'.encode() for number in range(3)
    }
    assert await world.store.cards_between("default", *records_between(task.id, 2)) == []
    assert inside_of(await world.store.task("default", task.id)).steps == 3


async def test_records_outlive_a_failed_turn_but_not_a_refused_output(world: World) -> None:
    task = await world.running_task()
    await world.do(_record(world, task, "1:()plan#1"))
    again = await world.do(world.fail(task, BROKEN))
    assert (inside_of(again).run, inside_of(again).steps) == (1, 1)
    world.advance(60)
    task = await world.claim(again, await world.open_session("s2"))
    refused = await world.do(world.fail(task, ErrorInfo(code="bad_result")))
    assert (inside_of(refused).run, inside_of(refused).steps) == (2, 0)


@pytest.mark.parametrize("seconds_ahead", [0, 3600])
async def test_a_restore_concerns_every_task_made_before_it_by_any_clock(
    world: World, seconds_ahead: int
) -> None:
    """The machine of the restored store may have a clock that is behind that of the lost one."""
    old = await world.running_task()
    ahead = seconds_ahead * SECOND
    await world.database.sql(
        f"UPDATE tasks SET created_at = created_at + {ahead}, updated_at = updated_at + {ahead}"
    )
    store = await world.another_store()
    await store.commit_one(MarkRestored(command_id=world.new_id(), namespace="default", actor="ada"))
    assert isinstance(await _asked(world, old, store, key="pay:1"), Rejected)
    world.advance(seconds_ahead + 1)
    await world.open_session("s2")
    new = await world.running_task("s2")
    assert isinstance(await _asked(world, new, key="pay:2"), AllowExecute)


async def test_a_person_may_settle_an_effect_soon_after_a_restore_by_any_clock(
    world: World,
) -> None:
    await world.running_task()
    await world.database.sql(f"UPDATE tasks SET updated_at = updated_at + {3600 * SECOND}")
    await world.store.commit_one(MarkRestored(command_id=world.new_id(), namespace="default", actor="ada"))
    new = await world.running_task()
    assert isinstance(await _asked(world, new), Rejected)

    effect = await world.store.effect("default", "pay:1")
    assert effect is not None
    assert effect.not_after is not None
    assert effect.not_after <= await world.store.now() + 10 * SECOND


@pytest.mark.covers("S4.34", "S3.36")
async def test_an_effect_that_was_done_is_never_allowed_again(world: World) -> None:
    task = await world.running_task()
    assert isinstance(await _asked(world, task), AllowExecute)
    done = world.to(c.FinishEffect, task, step=PAY, key="pay:1", **_content(b'"receipt"'))
    await world.do(done)
    other = await world.running_task()

    answer = await _asked(world, other)

    assert isinstance(answer, ReturnRecordedResult)
    card = await world.store.card("default", answer.card)
    assert card.content == b'"receipt"'
    assert (await world.store.effect("default", "pay:1")).status == "done"  # type: ignore[union-attr]


@pytest.mark.covers("T15")
async def test_an_intent_of_a_dead_worker_is_waited_for_and_then_unknown(world: World) -> None:
    task = await world.running_task()
    await _asked(world, task)
    other = await world.running_task()
    answer = await _asked(world, other)
    assert isinstance(answer, WaitOtherWorker)

    world.advance(16)  # its timeout, and the margin
    answer = await _asked(world, other)

    assert isinstance(answer, Rejected)
    assert answer.code == "effect_unknown"
    assert (await world.store.effect("default", "pay:1")).status == "unknown"  # type: ignore[union-attr]


async def test_two_stores_at_once_intend_an_effect_once(world: World) -> None:
    tasks = [await world.running_task() for _ in range(8)]
    stores = [world.store, await world.another_store()]
    for number in range(5):
        key = f"pay:{number}"
        answers = await asyncio.gather(
            *(_asked(world, task, stores[i % 2], key=key) for i, task in enumerate(tasks))
        )
        assert sum(isinstance(answer, AllowExecute) for answer in answers) == 1


async def test_other_arguments_under_one_key_are_rejected_in_another_lineage(world: World) -> None:
    await _asked(world, await world.running_task())
    answer = await _asked(world, await world.running_task(), args="others")
    assert isinstance(answer, Rejected)
    assert answer.code == "effect_conflict"


@pytest.mark.covers("S3.14", "S3.15", "S3.16", "S3.43")
async def test_a_stale_attempt_cannot_commit_its_effect(world: World) -> None:
    task = await world.running_task()
    await _asked(world, task)
    await world.do(world.to(c.HandBack, task))
    await world.claim(await world.store.task("default", task.id), "s1")
    before = await world.store.effect("default", "pay:1")

    with pytest.raises(StaleAttempt):
        await world.do(world.to(c.FinishEffect, task, step=PAY, key="pay:1", **_content()))

    assert await world.store.effect("default", "pay:1") == before
    assert await world.store.cards_between("default", *records_between(task.id, 1)) == []
    assert (await world.store.events_of_task("default", task.id))[-1].type == "write.refused"


@pytest.mark.covers("T16")
@pytest.mark.parametrize("kind", [c.FinishEffect, c.DoubtEffect])
async def test_a_task_cannot_speak_for_an_effect_that_another_intended_under_the_same_key(
    world: World, kind: type[c.TaskCommand]
) -> None:
    """Callers choose keys: the current attempt of a task is not the holder of every effect so named."""
    await _asked(world, await world.running_task())
    other = await world.running_task()
    before = await world.store.effect("default", "pay:1")
    said = {"step": PAY, **_content()} if kind is c.FinishEffect else {"reason": "timeout"}

    with pytest.raises(StaleAttempt):
        await world.do(world.to(kind, other, key="pay:1", **said))

    assert await world.store.effect("default", "pay:1") == before
    assert await world.store.cards_between("default", *records_between(other.id, 1)) == []


async def test_a_cancelled_task_leaves_its_intents_unknown(world: World) -> None:
    task = await world.running_task()
    await _asked(world, task)
    await world.do(world.to(c.Cancel, task))
    effect = await world.store.effect("default", "pay:1")
    assert effect is not None
    assert effect.status == "unknown"


@pytest.mark.parametrize(
    ("verdict", "status"), [("done", "done"), ("not_done", "not_done"), ("abandon", "abandoned")]
)
async def test_a_person_settles_an_unknown_effect_and_the_task_is_queued(
    world: World, verdict: str, status: str
) -> None:
    task = await world.running_task()
    await _asked(world, task)
    await world.do(world.to(c.DoubtEffect, task, key="pay:1", reason="timeout"))
    await world.do(world.to(c.Block, task, reason="effect_unknown", effect_key="pay:1"))

    said = world.to(c.SettleEffect, task, key="pay:1", verdict=verdict, actor="ada", force=True)
    onward = await world.do(said)

    assert onward.status == "queued"
    effect = await world.store.effect("default", "pay:1")
    assert effect is not None
    assert (effect.status, effect.settled_by) == (status, "ada")
    with pytest.raises(WrongStatus):
        await world.do(world.to(c.SettleEffect, task, key="pay:1", verdict="not_done", actor="eve"))


async def test_a_replayed_task_finds_the_effects_of_the_one_it_replaces(world: World) -> None:
    task = await world.running_task()
    await _asked(world, task)
    await world.do(world.to(c.FinishEffect, task, step=PAY, key="pay:1", **_content()))
    await world.do(world.fail(task, HOPELESS))
    replay = world.to(c.Replay, task, new_task_id=world.new_id(), payload=b"{}", payload_hash="x")
    new = await world.claim(await world.do(replay), "s1")

    assert isinstance(await _asked(world, new), ReturnRecordedResult)
    assert isinstance(await _asked(world, new, args="what a new plan came to"), Rejected)


async def test_an_answer_that_comes_before_the_turn_waits_is_kept_and_applied(world: World) -> None:
    task = await world.running_task()
    await world.do(world.answer(task, "look"))
    (kept,) = await world.store.pending_messages("default", task.id)
    assert (kept.message_type, kept.correlation_id) == ("tool_result", record_id(task.id, "1:()look#1"))

    back = await world.do(world.to(c.Suspend, task, calls=(world.call(task, "look"),)))

    assert back.status == "queued"
    assert await world.store.pending_messages("default", task.id) == []
    assert waits_of(back)[0].wait_status == "applied"
    rows = await world.database.sql("SELECT status FROM turn_resume_ledger")
    assert [row[0] for row in rows] == ["applied"]


@pytest.mark.covers("T6")
async def test_of_a_timeout_and_a_real_result_the_first_applies_and_the_other_is_kept(world: World) -> None:
    task = await world.suspended_task("look", "listen")
    world.advance(61)
    after = await world.do(world.to(c.InjectTimeout, task))
    after = await world.store.task("default", task.id)
    assert after.status == "queued"  # both timed out, and the reports were delivered

    late = await world.do(world.answer(task, "look", b'"late"'))

    assert late.status == "queued"
    rows = await world.database.sql(
        "SELECT message_type, status, watchdog_error FROM agent_inbox "
        "WHERE message_type <> 'turn' ORDER BY message_type, id"
    )
    assert [tuple(row) for row in rows] == [
        ("timeout", "consumed", None),
        ("timeout", "consumed", None),
        ("tool_result", "consumed", "late"),
    ]
    record = await world.store.card("default", record_id(task.id, "1:()look#1"))
    assert b'"timeout"' in record.content


async def test_an_answer_to_an_ended_task_is_kept_as_late(world: World) -> None:
    task = await world.suspended_task("look")
    await world.do(world.to(c.Cancel, task))
    await world.store.commit((world.answer(task, "look"),))
    rows = await world.database.sql("SELECT status, watchdog_error FROM agent_inbox")
    assert [tuple(row) for row in rows] == [("consumed", "late")]


async def test_a_signal_is_kept_until_it_is_waited_for(world: World) -> None:
    task = await world.running_task()
    for value in (b'"first"', b'"second"'):
        await world.do(world.to(c.Signal, task, name="go", **_content(value)))
    back = await world.do(world.to(c.Suspend, task, calls=(world.call(task, "wait", "signal", asks="go"),)))
    assert back.status == "queued"
    (left,) = await world.store.pending_messages("default", task.id)
    assert left.message_type == "signal"
    await world.do(world.to(c.Cancel, task))
    with pytest.raises(Refused):
        await world.do(world.to(c.Signal, task, name="go", **_content()))


async def test_the_end_of_a_child_wakes_its_parent(world: World) -> None:
    parent = await world.running_task()
    call = world.call(parent, "ask", "call", is_child=True)
    child = world.submit(parent_id=parent.id, parent_call=call.tool_call_id, parent_agent="coder", depth=1)
    await world.store.commit((child, world.to(c.Suspend, parent, calls=(call,))))
    running = await world.claim(await world.store.task("default", child.task_id), "s1")

    await world.do(world.finish(running, b'"reviewed"'))

    assert (await world.store.task("default", parent.id)).status == "queued"
    record = await world.store.card("default", call.tool_call_id)
    assert f'"{child.task_id}.out"'.encode() in record.content
    assert [task.id for task in await world.store.children("default", parent.id)] == [child.task_id]


@pytest.mark.parametrize(
    ("policy", "status", "owner"), [("cancel", "cancelled", None), ("leave", "queued", "ada")]
)
async def test_the_end_of_a_parent_settles_its_children(
    world: World, policy: str, status: str, owner: str | None
) -> None:
    parent = await world.running_task()
    call = world.call(parent, "ask", "call", is_child=True)
    child = world.submit(
        parent_id=parent.id, parent_call=call.tool_call_id, owner=owner, on_parent_end=policy
    )
    await world.store.commit((child, world.to(c.Suspend, parent, calls=(call,))))

    await world.do(world.to(c.Cancel, parent))

    after = await world.store.task("default", child.task_id)
    assert after.status == status
    assert await world.store.undelivered_messages("default", await world.store.now() + SECOND, 10) == []
    events = [event.type for event in await world.store.events_of_task("default", child.task_id)]
    assert ("task.orphaned" in events) == (policy == "leave")


@pytest.mark.covers("S4.54", "S4.55")
async def test_an_approval_inside_a_turn_needs_its_quorum_of_named_people(world: World) -> None:
    task = await world.running_task()
    call = world.call(task, "merge", "approval", by=("ada", "bob", "eve"), quorum=2)
    task = await world.do(world.to(c.Suspend, task, calls=(call,)))
    yes = {"approval_id": call.tool_call_id}
    with pytest.raises(Refused, match="may not decide"):
        await world.do(world.to(c.Approve, task, actor="mallory", **yes))
    assert (await world.do(world.to(c.Approve, task, actor="ada", **yes))).status == "suspended"
    with pytest.raises(WrongStatus, match="already agreed"):
        await world.do(world.to(c.Approve, task, actor="ada", **yes))
    assert (await world.do(world.to(c.Approve, task, actor="bob", **yes))).status == "queued"
    row = await world.store.approval("default", call.tool_call_id)
    assert (row.decision, row.decided_by, row.votes) == ("approved", "ada, bob", "ada")
    types = [event.type for event in await world.store.events_of_task("default", task.id)]
    assert [type_ for type_ in types if type_.startswith("approval")] == [
        "approval.requested",
        "approval.voted",
        "approval.approved",
    ]


@pytest.mark.covers("T20", "S4.56")
async def test_an_approval_is_decided_once(world: World) -> None:
    task = await world.running_task()
    call = world.call(task, "merge", "approval")
    task = await world.do(world.to(c.Suspend, task, calls=(call,)))
    no = world.to(c.Reject, task, actor="ada", approval_id=call.tool_call_id)
    assert (await world.do(no)).status == "queued"
    with pytest.raises(Refused):
        await world.do(world.to(c.Approve, task, actor="bob", approval_id=call.tool_call_id))
    assert (await world.store.approval("default", call.tool_call_id)).decision == "rejected"
    events = await world.store.events_of_task("default", task.id)
    assert "approval.rejected" in [event.type for event in events]


@pytest.mark.covers("S0.32")
async def test_answers_that_a_worker_took_and_did_not_hand_on_are_open_again(world: World) -> None:
    task = await world.running_task()
    await world.do(world.answer(task, "look"))
    (message,) = await world.store.pending_messages("default", task.id)
    basics = {"namespace": "default", "actor": "w1"}
    take = c.TakeResumes(command_id=world.new_id(), message_ids=(message.id,), lease=5 * SECOND, **basics)
    await world.store.commit_one(take)
    states = "SELECT status, lease_owner FROM turn_resume_ledger"
    assert [tuple(row) for row in await world.database.sql(states)] == [("processing", "w1")]
    world.advance(6)
    await world.store.commit_one(c.RequeueResumes(command_id=world.new_id(), **basics))
    assert [tuple(row) for row in await world.database.sql(states)] == [("pending", None)]
