"""Approvals: who may decide, on what exactly, how many must agree, and until when."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from endwell import errors as e
from endwell.machine.decide import decide
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task
from tests.machine.stages import (
    LIMITS,
    NOW,
    asked,
    clock_fires,
    give,
    offer,
    running_task,
    seeing,
    task_awaiting_approval,
    task_waiting_for,
    to,
    tool,
)

IN_TURN = "t.s.ask"
Stage = Callable[..., tuple[Task, dict[str, Any]]]


def before_it_starts(**options: Any) -> tuple[Task, dict[str, Any]]:
    asked_of = {"approval_by": options.get("by", ()), "approval_quorum": options.get("quorum", 1)}
    return task_awaiting_approval(approval_within=60 * SECOND, **asked_of), {}


def inside_its_turn(**options: Any) -> tuple[Task, dict[str, Any]]:
    return task_waiting_for(asked(60, **options)), {"approval_id": IN_TURN}


BOTH = pytest.mark.parametrize("stage", [before_it_starts, inside_its_turn])


def code_of(task: Task, kind: type[c.TaskCommand], now: int = NOW, **options: Any) -> str | None:
    refusal = offer(task, kind, now, **options).refusal
    return refusal.code if refusal else None


@pytest.mark.covers("S4.55", "S4.56")
@BOTH
def test_each_decision_on_an_approval_is_one_event(stage: Stage) -> None:
    task, which = stage()

    approved, rejected = offer(task, c.Approve, **which), offer(task, c.Reject, **which)

    assert approved.facts[0].type == "approval.approved"
    assert rejected.facts[0].type == "approval.rejected"


@pytest.mark.covers("T20")
@BOTH
@pytest.mark.parametrize("first", [c.Approve, c.Reject])
@pytest.mark.parametrize("second", [c.Approve, c.Reject])
def test_an_approval_is_decided_once(
    stage: Stage, first: type[c.TaskCommand], second: type[c.TaskCommand]
) -> None:
    task, which = stage()
    decided = give(task, to(first, **which))

    answer = offer(decided, second, actor="bob", **which)

    assert isinstance(answer.refusal, e.WrongStatus | e.TaskEnded)
    assert answer.facts == ()


@pytest.mark.covers("T20")
@BOTH
@pytest.mark.parametrize("kind", [c.Approve, c.Reject])
def test_a_late_decision_is_refused_before_any_clock_fired(stage: Stage, kind: type[c.TaskCommand]) -> None:
    task, which = stage()

    assert code_of(task, kind, NOW + 60 * SECOND, **which) == "approval_expired"
    assert code_of(task, kind, NOW + 60 * SECOND - 1, **which) is None


@BOTH
def test_only_a_named_approver_decides(stage: Stage) -> None:
    task, which = stage(by=("ada", "bob"))

    assert code_of(task, c.Approve, actor="eve", **which) == "not_an_approver"
    assert code_of(task, c.Reject, actor="eve", **which) == "not_an_approver"
    assert code_of(task, c.Approve, actor="bob", **which) is None


@BOTH
def test_a_quorum_is_that_many_different_people(stage: Stage) -> None:
    task, which = stage(quorum=2)
    voted = give(task, to(c.Approve, actor="ada", **which))
    assert voted.status == task.status

    for spelling in ("ada", "Ada", "ADA", " ada", "ada ", "\uff41da"):
        assert code_of(voted, c.Approve, actor=spelling, **which) == "already_voted"
    assert give(voted, to(c.Approve, actor="bob", **which)).status == "queued"


@BOTH
def test_one_rejection_is_enough(stage: Stage) -> None:
    task, which = stage(quorum=2)
    voted = give(task, to(c.Approve, actor="ada", **which))

    assert offer(voted, c.Reject, actor="bob", **which).facts[0].type == "approval.rejected"


def test_a_decision_on_other_content_than_shown_is_refused() -> None:
    task, which = inside_its_turn()

    assert code_of(task, c.Approve, shown_hash="another", **which) == "approval_changed"
    assert code_of(task, c.Approve, shown_hash="shown", **which) is None


def test_a_request_with_other_content_loses_its_votes() -> None:
    task, which = inside_its_turn(quorum=2)
    voted = give(task, to(c.Approve, actor="ada", **which))
    freed = give(give(voted, to(c.Block)), to(c.RunNow))
    running = give(freed, to(c.Claim, attempt_id="a2"))
    same = give(running, to(c.Suspend, attempt_id="a2", calls=(asked(quorum=2),)))
    changed = give(running, to(c.Suspend, attempt_id="a2", calls=(asked(quorum=2, content_hash="x"),)))

    assert give(same, to(c.Approve, actor="bob", **which)).status == "queued"
    assert give(changed, to(c.Approve, actor="bob", **which)).status == "suspended"


def test_an_approval_without_an_open_wait_cannot_be_decided() -> None:
    task, which = inside_its_turn()
    running = give(give(give(task, to(c.Block)), to(c.RunNow)), to(c.Claim, attempt_id="a2"))
    elsewhere = give(running, to(c.Suspend, attempt_id="a2", calls=(tool(),)))

    assert code_of(elsewhere, c.Approve, **which) == "approval_not_open"


def test_the_record_of_an_approval_names_people_and_content() -> None:
    task, which = inside_its_turn()

    answer = offer(task, c.Approve, **which)

    assert [fact.type for fact in answer.facts] == ["approval.approved", "wait.answered", "task.resumed"]
    record = json.loads(answer.cards[0].content)
    assert (answer.cards[0].id, record) == (
        IN_TURN,
        {"status": "approved", "turn": "t.t1", "by": ["ada"], "shown_hash": "shown"},
    )


def test_an_approval_inside_a_turn_expires_by_its_own_outcome() -> None:
    task, _ = inside_its_turn()

    answer = decide(task, to(c.ClockFired), NOW + 60 * SECOND, LIMITS)

    assert [fact.type for fact in answer.facts] == ["approval.expired", "wait.answered", "task.resumed"]
    assert json.loads(answer.cards[0].content)["status"] == "expired"


@pytest.mark.parametrize(
    ("code", "status"), [("approval_rejected", "failed"), ("approval_expired", "timeout")]
)
def test_a_decision_that_the_agent_does_not_catch_ends_the_task_without_a_dead_letter(
    code: str, status: str
) -> None:
    task = give(running_task(), to(c.FailTurn, error=ErrorInfo(code=code, retryable=False)))

    assert (task.status, task.reason, task.dead_letter) == (status, code, None)


def test_an_answer_from_a_tool_does_not_decide_an_approval() -> None:
    task = running_task()
    early = offer(task, c.Answer, tool_call_id=IN_TURN).messages

    asked_task = give(task, to(c.Suspend, calls=(asked(60),)), seen=seeing(*early))

    assert asked_task.status == "suspended"
    assert code_of(asked_task, c.Answer, tool_call_id=IN_TURN) == "not_a_tool_call"


def test_only_an_open_approval_has_a_reminder() -> None:
    task = task_waiting_for(asked(10 * 3600, by=("ada",)), tool("w1", 20 * 3600))
    assert task.remind_at == NOW + LIMITS.remind_every

    decided = give(task, to(c.Approve, approval_id=IN_TURN))

    assert (decided.status, decided.remind_at) == ("suspended", None)


def test_the_reminder_does_not_move_the_expiry() -> None:
    task = task_awaiting_approval(approval_within=3 * 86_400 * SECOND, deadline=9 * 86_400 * SECOND)

    reminded = clock_fires(task)

    assert reminded.remind_at == NOW + 2 * LIMITS.remind_every
    assert reminded.expire_at == task.expire_at
