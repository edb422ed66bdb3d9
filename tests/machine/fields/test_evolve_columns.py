"""What each fact moves in a task that has a value in every column, and that it moves nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.model import facts as f
from endwell.model.approval import OpenApproval
from endwell.model.facts import encode_error
from tests.machine.fields.full import (
    ASK,
    AT,
    ENDED,
    FULL,
    LET_GO,
    NEWS,
    OWN,
    QUESTION,
    TOOL,
    TURN_OVER,
    moved,
)

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
