"""What is written when a person decides, inside a turn or before its start."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Decision
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.moments import SECOND
from endwell.model.task import packed_waits
from endwell.model.wait import Wait
from tests.machine.fields.waits import AT, RESUMED, applied, record_of
from tests.machine.stages import (
    LIMITS,
    NOW,
    asked,
    give,
    offer,
    task_awaiting_approval,
    task_waiting_for,
    to,
    tool,
)


def test_an_approval_resumes_the_turn_with_the_names_and_the_content() -> None:
    question = asked(60, by=("ada", "bob"), quorum=2)
    waiting = give(task_waiting_for(question, tool("w1", 90)), to(c.Approve, approval_id="t.s.ask"))
    command = to(c.Approve, approval_id="t.s.ask", actor="bob", shown_hash="shown")

    assert decide(waiting, command, AT - 1, LIMITS) == Decision(
        facts=(
            f.ApprovalApproved(by="ada, bob", run_at=AT - 1, id="t.s.ask"),
            applied("ask", NOW + 90 * SECOND),
        ),
        cards=(record_of("ask", AT - 1, status="approved", by=["ada", "bob"], shown_hash="shown"),),
    )


def test_a_no_inside_a_turn_is_the_turns_answer() -> None:
    waiting = task_waiting_for(asked(60, by=("ada", "bob"), quorum=2))

    assert offer(waiting, c.Reject, approval_id="t.s.ask", actor="bob") == Decision(
        facts=(f.RejectedApproval(by="bob", id="t.s.ask"), applied("ask", None), RESUMED),
        cards=(record_of("ask", status="rejected", by=["bob"], shown_hash="shown"),),
    )


def test_a_vote_is_one_fact_until_the_quorum_is_reached() -> None:
    waiting = task_awaiting_approval(approval_quorum=2)

    assert offer(waiting, c.Approve) == Decision(facts=(f.ApprovalVoted(by="ada"),))
    voted = give(waiting, to(c.Approve))
    assert offer(voted, c.Approve, actor="bob") == Decision(
        facts=(f.ApprovalApproved(by="ada, bob", run_at=NOW),)
    )
    inside = task_waiting_for(asked(quorum=2))
    assert offer(inside, c.Approve, approval_id="t.s.ask").facts == (f.ApprovalVoted(by="ada", id="t.s.ask"),)


@pytest.mark.parametrize(("delay", "run_at"), [(0, AT), (60 * SECOND, AT), (61 * SECOND, AT + SECOND)])
def test_a_yes_does_not_start_a_task_before_its_time(delay: int, run_at: int) -> None:
    waiting = task_awaiting_approval(delay=delay)

    assert offer(waiting, c.Approve, AT).facts == (f.ApprovalApproved(by="ada", run_at=run_at),)


def test_a_question_without_an_end_can_be_answered_at_any_time() -> None:
    endless = replace(task_awaiting_approval(), expire_at=None)

    assert offer(endless, c.Approve, AT).refusal is None


def test_a_no_to_the_start_ends_the_task_without_a_dead_letter() -> None:
    rejected, ended = offer(task_awaiting_approval(), c.Reject).facts

    assert rejected == f.RejectedApproval(by="ada")
    assert isinstance(ended, f.FailedEnding)
    assert ended.reason == "approval_rejected"


def test_a_question_whose_wait_is_over_is_closed_even_while_it_is_remembered() -> None:
    waiting = task_waiting_for(asked(), tool("w1"))
    closed = replace(waiting, waits=packed_waits((Wait("t.s.ask", "approval", AT, wait_status="applied"),)))

    for kind in (c.Approve, c.Reject):
        refusal = offer(closed, kind, approval_id="t.s.ask").refusal
        assert refusal is not None
        assert refusal.code == "approval_not_open"
        late = offer(waiting, kind, AT, approval_id="t.s.ask").refusal
        assert late is not None
        assert (late.code, late.task_id) == ("approval_expired", "t")
