"""What each fact moves in a task, column by column, and that it moves nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine.evolve import evolve, stamp
from endwell.model import facts as f
from endwell.model.approval import OpenApproval
from endwell.model.facts import encode_error
from endwell.model.inside import Inside, inside_of, packed_inside
from endwell.model.task import ErrorInfo, Task, packed_waits
from tests.machine.full import ASK, AT, BARE, FULL, OWN, QUESTION, TOOL, moved

NEWS = ErrorInfo(code="new", message="it broke")
LET_GO = dict.fromkeys(("attempt_id", "session_id", "slot", "ring_at", "dispatch_by", "progress_by"))
TURN_OVER = {**LET_GO, **dict.fromkeys(("turn_id", "redelivery", "waits", "wait_by", "suspend_by"))}
ENDED = dict.fromkeys(("remind_at", "recover_at", "guard_at", "guard_reason", "held_since"))
ENDING: dict[str, Any] = {
    "reason": "why",
    "deliverable_card": "out",
    "deliverable_hash": "h",
    "retry_count": 7,
}

MOVES: dict[str, tuple[f.Fact, dict[str, Any]]] = {
    "an approval before the start": (
        f.ApprovalRequested(remind_at=30, expire_at=40, shown_hash="other", by=("eve",), quorum=3),
        {
            "status": "waiting_approval",
            "remind_at": 30,
            "expire_at": 40,
            "inside.asked": (QUESTION, OpenApproval("t", "other", ("eve",), 3)),
        },
    ),
    "an approval of the same thing, which keeps its votes": (
        f.ApprovalRequested(remind_at=30, expire_at=40, shown_hash="payload", by=("eve",), quorum=3),
        {
            "status": "waiting_approval",
            "remind_at": 30,
            "expire_at": 40,
            "inside.asked": (QUESTION, OpenApproval("t", "payload", ("eve",), 3, ("bob",))),
        },
    ),
    "an approval inside a turn": (
        f.ApprovalRequested(id="t.s.ask2", remind_at=30, expire_at=40, shown_hash="payload"),
        {"remind_at": 30, "inside.asked": (OWN, QUESTION, OpenApproval("t.s.ask2", "payload"))},
    ),
    "a voice for the start": (
        f.ApprovalVoted(by="ada"),
        {"inside.asked": (replace(OWN, votes=("bob", "ada")), QUESTION)},
    ),
    "a voice inside a turn": (
        f.ApprovalVoted(by="eve", id="t.s.ask"),
        {"inside.asked": (OWN, replace(QUESTION, votes=("zoe", "eve")))},
    ),
    "a yes to the start": (
        f.ApprovalApproved(by="ada", run_at=33),
        {"status": "queued", "run_at": 33, "remind_at": None, "expire_at": None, "inside.asked": (QUESTION,)},
    ),
    "a yes inside a turn": (
        f.ApprovalApproved(by="ada", run_at=33, id="t.s.ask"),
        {"remind_at": None, "inside.asked": (OWN,)},
    ),
    "a yes while another question is open": (f.ApprovalApproved(by="ada", run_at=33, id="t.s.other"), {}),
    "a no to the start": (f.RejectedApproval(by="ada"), {}),
    "a no inside a turn": (
        f.RejectedApproval(by="ada", id="t.s.ask"),
        {"remind_at": None, "inside.asked": (OWN,)},
    ),
    "an expiry": (f.ExpiredApproval(id="t.s.ask"), {"remind_at": None, "inside.asked": (OWN,)}),
    "a reminder of an approval": (f.ApprovalReminded(remind_at=31), {"remind_at": 31}),
    "a reminder": (f.TaskReminded(remind_at=31), {"remind_at": 31}),
    "an offer": (
        f.TaskDispatched(
            turn_id="t.t4", turn_number=4, dispatch_count=5, epoch=6, ring_at=31, dispatch_by=32, slot=7
        ),
        {
            "status": "dispatched",
            "turn_id": "t.t4",
            "turn_number": 4,
            "dispatch_count": 5,
            "epoch": 6,
            "ring_at": 31,
            "dispatch_by": 32,
            "slot": 7,
            "guard_at": None,
            "guard_reason": None,
        },
    ),
    "an offer that is one too many": (
        f.TaskDispatched(turn_id="t.t3", turn_number=3, dispatch_count=3, epoch=4, slot=1, guard_at=34),
        {
            "status": "dispatched",
            "ring_at": None,
            "dispatch_by": None,
            "guard_at": 34,
            "guard_reason": "runaway_guard",
        },
    ),
    "a ring": (f.TaskRang(ring_at=31), {"ring_at": 31}),
    "a claim": (
        f.TaskClaimed(attempt_id="a2", session_id="s2", progress_by=33, agent_version="v2"),
        {
            "status": "running",
            "attempt_id": "a2",
            "session_id": "s2",
            "progress_by": 33,
            "ring_at": None,
            "dispatch_by": None,
            "redelivery": None,
            "inside.doing": (),
        },
    ),
    "a sign of life": (f.TaskHeartbeat(progress_by=33), {"progress_by": 33}),
    "a step that begins": (
        f.StepStarted(step="new", progress_by=33),
        {"progress_by": 33, "inside.doing": (("long", 70), ("mail", 80), ("new", 33))},
    ),
    "a step that begins again": (
        f.StepStarted(step="long", progress_by=33),
        {"progress_by": 33, "inside.doing": (("mail", 80), ("long", 33))},
    ),
    "a record": (
        f.StepRecorded(step="long", progress_by=33, card="c"),
        {"progress_by": 33, "inside.steps": 4, "inside.doing": (("mail", 80),)},
    ),
    "a step that came to nothing": (
        f.StepRecorded(step="mail", progress_by=33),
        {"progress_by": 33, "inside.doing": (("long", 70),)},
    ),
    "a draft": (
        f.DraftKept(card="c", card_hash="h", progress_by=33),
        {"progress_by": 33, "inside.draft": "c", "inside.draft_hash": "h"},
    ),
    "an intent": (
        f.EffectIntended(key="pay", step="pay", args_hash="", lineage="", not_after=1, progress_by=33),
        {
            "progress_by": 33,
            "inside.intents": ("mail", "post", "pay"),
            "inside.doing": (("long", 70), ("mail", 80), ("pay", 33)),
        },
    ),
    "an intent that is tried again": (
        f.EffectIntended(key="mail", step="long", args_hash="", lineage="", not_after=1, progress_by=33),
        {
            "progress_by": 33,
            "inside.intents": ("post", "mail"),
            "inside.doing": (("mail", 80), ("long", 33)),
        },
    ),
    "an effect that is done": (
        f.EffectDone(key="mail", card="", card_hash=""),
        {"inside.intents": ("post",)},
    ),
    "an effect in doubt": (f.EffectDoubted(key="mail", reason=""), {"inside.intents": ("post",)}),
    "a settlement": (f.EffectSettled(key="post", verdict="done", by=""), {"inside.intents": ("mail",)}),
    "a nudge": (
        f.TaskNudged(about="", message_id="", nudges=5, progress_by=33),
        {"progress_by": 33, "inside.nudges": 5},
    ),
    "a turn that a worker returned, which stays": (
        f.TaskHandedBack(attempt_id="a1", reason="returned"),
        {"status": "queued", **LET_GO},  # its redelivery counts, as it did before
    ),
    "a turn that is handed back": (
        f.TaskHandedBack(attempt_id="a1", reason=""),
        {"status": "queued", "redelivery": "hand_back", **LET_GO},
    ),
    "a suspension": (
        f.TaskSuspended(waits=(TOOL, ASK), wait_by=50, suspend_by=90, children=2),
        {
            "status": "suspended",
            "waits": (TOOL, ASK),
            "wait_by": 50,
            "suspend_by": 90,
            "inside.steps": 5,
            "inside.children": 3,
            "inside.is_offered": False,
            **LET_GO,
        },
    ),
    "waits that are over": (
        f.WaitExpired(reported=("t.s.w1",), wait_by=60),
        {"waits": (ASK, replace(TOOL, is_reported=True)), "wait_by": 60},
    ),
    "waits that are over and cannot be told": (
        f.WaitExpired(skipped=("t.s.ask",)),
        {"waits": (replace(ASK, is_reported=True), TOOL), "wait_by": None},
    ),
    "an answer": (
        f.WaitAnswered(tool_call_id="t.s.w1", wait_status="applied", result_card="c", wait_by=60),
        {"waits": (ASK, replace(TOOL, wait_status="applied", result_card="c")), "wait_by": 60},
    ),
    "a turn that resumes": (
        f.TaskResumed(epoch=6, run_at=33),
        {
            "status": "queued",
            "redelivery": "resume",
            "epoch": 6,
            "run_at": 33,
            "wait_by": None,
            "suspend_by": None,
            "remind_at": None,
        },
    ),
    "a turn that is taken away": (f.TaskReaped(reason="", epoch=6), {"epoch": 6}),
    "the end of a turn": (
        f.TurnEnded(turn_id="t.t3", outcome="failed", epoch=6),
        {
            "status": "queued",
            "epoch": 6,
            "remind_at": None,
            "inside.asked": (OWN,),
            "inside.is_offered": False,
            **TURN_OVER,
        },
    ),
    "a retry": (
        f.TaskRetryScheduled(retry_count=4, run_at=33, reason="new", error=NEWS),
        {"status": "queued", "retry_count": 4, "run_at": 33, "reason": "new", "error": encode_error(NEWS)},
    ),
    "a retry in a run of its own": (
        f.TaskRetryScheduled(retry_count=2, run_at=10, reason="reason", error=NEWS, run=3),
        {"status": "queued", "error": encode_error(NEWS), "inside.run": 3, "inside.steps": 0},
    ),
    "a start that is asked for now": (f.TaskRushed(run_at=33, by="ada"), {"run_at": 33}),
    "a person's word to go on": (
        f.TaskUnblocked(by="ada", run_at=33, ends_by=98_000),
        {
            "status": "queued",
            "reason": None,
            "run_at": 33,
            "ends_by": 98_000,
            "held_since": None,
            "remind_at": None,
            "recover_at": None,
        },
    ),
    "an unblocking that gives all retries again": (
        f.TaskUnblocked(by="ada", run_at=10, ends_by=99_000, retry_count=0),
        {
            "status": "queued",
            "reason": None,
            "retry_count": 0,
            "held_since": None,
            "remind_at": None,
            "recover_at": None,
        },
    ),
    "another owner": (f.TaskAssigned(owner="eve", by="ada"), {"owner": "eve"}),
    "an orphan": (f.TaskOrphaned(parent_id="p", owner="eve"), {"owner": "eve"}),
    "a success": (
        f.SucceededEnding(deliverable_card="out", deliverable_hash="h"),
        {
            "status": "succeeded",
            "reason": None,
            "error": None,
            "deliverable_card": "out",
            "ended_at": AT,
            **ENDED,
        },
    ),
    "a dead letter": (f.TaskDeadLettered(fingerprint=""), {"dead_letter": "open"}),
    "a replay": (
        f.DeadLetterReplayed(superseded_by="t2", by="ada"),
        {"dead_letter": "replayed", "superseded_by": "t2"},
    ),
    "a dead letter that is given up": (f.DeadLetterAbandoned(by="ada"), {"dead_letter": "abandoned"}),
    "a skipped message": (f.InboxSkipped(message_id="", message_type="", watchdog_error=""), {}),
    "a write that was refused": (f.WriteRefused(command="", attempt_id=""), {}),
}


@pytest.mark.parametrize("what", MOVES)
def test_a_fact_moves_its_columns_and_no_other(what: str) -> None:
    fact, expected = MOVES[what]

    assert moved(FULL, fact) == expected


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
