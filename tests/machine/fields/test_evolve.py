"""What a fact moves in a task where that depends on the task, and how a task begins."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine.evolve import evolve, stamp
from endwell.model import facts as f
from endwell.model.facts import encode_error
from endwell.model.inside import Inside, inside_of, packed_inside
from endwell.model.task import Task, packed_waits
from tests.machine.fields.full import ASK, AT, BARE, ENDED, FULL, LET_GO, NEWS, TOOL, moved

ENDING: dict[str, Any] = {
    "reason": "why",
    "deliverable_card": "out",
    "deliverable_hash": "h",
    "retry_count": 7,
}


@pytest.mark.parametrize(
    ("kind", "status"),
    [(f.FailedEnding, "failed"), (f.TimedOutEnding, "timeout"), (f.CancelledEnding, "cancelled")],
)
def test_an_end_without_a_result_says_why_and_lets_go_of_every_clock(kind: Any, status: str) -> None:
    by = {"by": "ada"} if kind is f.CancelledEnding else {}
    expected = {
        "status": status,
        "reason": "why",
        "deliverable_card": "out",
        "retry_count": 7,
        "ended_at": AT,
        **ENDED,
    }

    assert moved(FULL, kind(**ENDING, **by)) == expected, "the last error stays"
    assert moved(FULL, kind(**ENDING, **by, error=NEWS)) == {**expected, "error": encode_error(NEWS)}


def reclaimed(guard_at: int | None) -> f.TaskReclaimed:
    return f.TaskReclaimed(
        attempt_id="a1",
        session_id="s1",
        by="pmo",
        reason="lease_lapsed",
        epoch=6,
        crash_count=3,
        crash_times="7,8",
        guard_at=guard_at,
    )


def test_a_reclaim_sets_the_guard_unless_it_is_set() -> None:
    gone = {"status": "queued", "redelivery": "reclaim", "epoch": 6, "crash_count": 3, "crash_times": "7,8"}
    still = {name: value for name, value in gone.items() if name != "redelivery"}  # it was one before
    unguarded = replace(FULL, guard_at=None, guard_reason=None)

    assert moved(FULL, reclaimed(34)) == {**still, **LET_GO}
    assert moved(unguarded, reclaimed(34)) == {
        **still,
        **LET_GO,
        "guard_at": 34,
        "guard_reason": "crash_limit",
    }
    assert moved(unguarded, reclaimed(None)) == {**still, **LET_GO}
    assert moved(replace(BARE, status="running"), reclaimed(None)) == gone


def test_a_person_who_holds_a_task_stops_its_clocks_and_a_cooldown_does_not() -> None:
    task = replace(FULL, status="queued", recover_at=None, held_since=None, remind_at=None)
    over = {"status": "blocked", "wait_by": None, "suspend_by": None, "inside.is_offered": False, **LET_GO}

    held = f.TaskBlocked(reason="look", owner="eve", remind_at=35, error=NEWS, retry_count=5)
    assert moved(task, held) == {
        **over,
        "reason": "look",
        "owner": "eve",
        "error": encode_error(NEWS),
        "retry_count": 5,
        "held_since": AT,
        "remind_at": 35,
    }
    assert moved(task, f.TaskBlocked(reason="cool", recover_at=36)) == {
        **over,
        "reason": "cool",
        "recover_at": 36,
    }
    assert moved(FULL, f.TaskBlocked(reason="cool")) == {
        **{name: None for name, value in over.items() if name != "status" and value is None},
        "inside.is_offered": False,
        "reason": "cool",
        "held_since": None,
        "remind_at": None,
        "recover_at": None,
    }


def test_a_task_in_which_nothing_happened_stays_so() -> None:
    ended = f.TurnEnded(turn_id="t.t1", outcome="failed", epoch=1)
    retried = f.TaskRetryScheduled(retry_count=1, run_at=5, reason="new", error=NEWS)
    claimed = f.TaskClaimed(attempt_id="a1", session_id="s1", progress_by=33)
    offered = f.TaskDispatched(turn_id="t.t1", turn_number=1, dispatch_count=1, epoch=1)

    assert moved(BARE, ended) == {"epoch": 1}
    assert "inside.run" not in moved(BARE, retried)
    assert moved(BARE, f.TaskBlocked(reason="cool")) == {"status": "blocked", "reason": "cool"}
    for fact in (ended, retried, claimed, offered, f.TaskBlocked(reason="cool")):
        assert evolve(BARE, fact, AT).inside is None


def test_the_first_claim_starts_the_task_and_says_under_which_version_it_records() -> None:
    claimed = f.TaskClaimed(attempt_id="a1", session_id="s1", progress_by=33, agent_version="v2")
    holds = {"status": "running", "attempt_id": "a1", "session_id": "s1", "progress_by": 33}

    assert moved(BARE, claimed) == {**holds, "started_at": AT, "inside.version": "v2"}
    recorded = replace(BARE, inside=packed_inside(Inside(steps=1, version="v1")))
    assert inside_of(evolve(recorded, claimed, AT)).version == "v1"
    fresh = replace(BARE, inside=packed_inside(Inside(run=2, version="v1")))
    assert inside_of(evolve(fresh, claimed, AT)).version == "v2"


def test_an_offer_through_the_inbox_is_remembered() -> None:
    offer = f.TaskDispatched(turn_id="t.t1", turn_number=1, dispatch_count=1, epoch=1, is_offered=True)

    assert inside_of(evolve(BARE, offer, AT)) == Inside(is_offered=True)


def test_only_another_question_that_is_still_open_keeps_the_reminder() -> None:
    answered = replace(ASK, wait_status="applied")
    for waits, is_kept in (((ASK, TOOL), True), ((answered, TOOL), False), ((TOOL,), False)):
        task = replace(FULL, waits=packed_waits(waits))
        assert evolve(task, f.ExpiredApproval(id="t.s.w1"), AT).remind_at == (16 if is_kept else None)


def test_a_cancelled_task_that_is_tried_again_becomes_no_dead_letter() -> None:
    replayed = f.DeadLetterReplayed(superseded_by="t2", by="ada")

    assert moved(BARE, replayed) == {"superseded_by": "t2"}


def test_each_fact_stamps_the_task_with_its_number_time_and_clock() -> None:
    after = evolve(FULL, f.TaskAssigned(owner="eve", by="ada"), AT)

    assert (after.version, after.updated_at, after.head_hash) == (10, AT, b"head")
    assert (after.clock_at, after.clock_rule) == (16, "remind")
    assert stamp(after, 12, AT + 1, b"new") == replace(after, version=12, updated_at=AT + 1, head_hash=b"new")


def test_only_a_creation_begins_a_task() -> None:
    with pytest.raises(ValueError, match=r"task\.rushed"):
        evolve(None, f.TaskRushed(run_at=1, by="ada"), AT)


@pytest.mark.parametrize("guard_at", [None, 44])
def test_a_creation_is_the_whole_task(guard_at: int | None) -> None:
    same: dict[str, Any] = {
        "agent": "coder",
        "agent_key": "k",
        "channel": "side",
        "fair_key": "fair",
        "agent_version": "v1",
        "trace": "trace",
        "parent_id": "p",
        "replay_of": "t0",
        "payload_card": "in",
        "payload_hash": "hash",
        "priority": 3,
        "retry_policy": "{}",
        "family": '{"depth":1}',
        "owner": "ada",
        "run_at": 55,
        "ends_by": 66,
    }
    created = f.TaskCreated(key="key", guard_at=guard_at, **same)

    task = evolve(None, created, AT, namespace="n", task_id="t")

    assert task == Task(
        namespace="n",
        id="t",
        idempotency_key="key",
        created_at=AT,
        status="queued",
        guard_at=guard_at,
        guard_reason=None if guard_at is None else "runaway_guard",
        clock_at=66 if guard_at is None else 44,
        clock_rule="ends_by" if guard_at is None else "runaway_guard",
        version=1,
        updated_at=AT,
        **same,
    )
    assert evolve(None, replace(created, key=None), AT, task_id="t").idempotency_key == "t"
