"""What each clock rule writes, field by field, at its time and not before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine.clocks import arm, due
from endwell.machine.decide import decide
from endwell.machine.decision import Decision
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.approval import OpenApproval
from endwell.model.inside import Inside, packed_inside
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.policy.limits import Limits
from tests.machine.stages import (
    LIMITS,
    NOW,
    clock_fires,
    cooling_task,
    dispatched_task,
    queued_task,
    running_task,
    succeeded_task,
    suspended_task,
    task_awaiting_approval,
    task_held_by_a_person,
    to,
)

DAY = 86_400 * SECOND
AT = NOW + 7
BARE = Task("default", "t", "coder", ends_by=NOW + DAY)


def fired(task: Task, now: int = AT, limits: Limits = LIMITS, **options: Any) -> Decision:
    return decide(task, to(c.ClockFired, task, **options), now, limits)


def kind_of_report(decision: Decision) -> str:
    (card,) = decision.cards
    return str(json.loads(card.content)["kind"])


def test_nothing_follows_while_no_deadline_has_passed() -> None:
    for task in (queued_task(), dispatched_task(), running_task(), suspended_task()):
        assert fired(task) == Decision()


@pytest.mark.parametrize(
    ("deadlines", "kind", "reason"),
    [
        ({"ends_by": AT}, f.TimedOutEnding, "ends_by"),
        ({"guard_at": AT, "guard_reason": "crash_limit"}, f.FailedEnding, "crash_limit"),
        ({"guard_at": AT}, f.FailedEnding, "runaway_guard"),
    ],
)
def test_the_clocks_that_end_a_task_leave_a_dead_letter_and_a_watchdogs_report(
    deadlines: dict[str, Any], kind: type[f.Ending], reason: str
) -> None:
    decision = fired(replace(running_task(), **deadlines))

    ended = [fact for fact in decision.facts if isinstance(fact, f.Ending)]
    assert [(type(fact), fact.reason) for fact in ended] == [(kind, reason)]
    assert isinstance(decision.facts[-1], f.TaskDeadLettered)
    assert kind_of_report(decision) == "fallback_deliverable"


@pytest.mark.parametrize(
    ("task", "deadlines", "code", "outcome", "gives_up_as"),
    [
        (running_task(), {"progress_by": AT}, "timeout_reaped_by_watchdog", "failed", f.FailedEnding),
        (
            suspended_task(),
            {"suspend_by": AT, "wait_by": None},
            "suspend_timeout",
            "timeout",
            f.TimedOutEnding,
        ),
        (dispatched_task(), {"dispatch_by": AT}, "dispatch_timeout", "timeout", f.TaskBlocked),
    ],
)
def test_a_turn_that_a_clock_ends_by_force_is_tried_again_or_given_up(
    task: Task, deadlines: dict[str, Any], code: str, outcome: str, gives_up_as: type[f.Fact]
) -> None:
    over = replace(task, **deadlines)

    reaped, turn, again = fired(over, fraction=0.0).facts
    assert (reaped.type, turn.type) == ("task.reaped", "turn.ended")
    assert isinstance(turn, f.TurnEnded)
    assert (turn.outcome, turn.error, turn.deliverable_card) == (outcome, code, "t.t1.out")
    assert isinstance(again, f.TaskRetryScheduled)
    assert (again.reason, again.error.code, bool(again.error.message)) == (code, code, True)
    assert again.run_at == AT + SECOND * 4 // 10, "half a second, less a fifth"
    last = fired(replace(over, retry_count=3))
    assert gives_up_as in [type(fact) for fact in last.facts]
    assert kind_of_report(last) == "fallback_deliverable"


@pytest.mark.parametrize(("away", "is_spared"), [(0, False), (2, False), (3, True), (9, True)])
def test_time_without_a_supervisor_is_given_back_to_the_turn(away: int, is_spared: bool) -> None:
    decision = fired(replace(running_task(), progress_by=AT - 2), away=away)

    if is_spared:
        spared = f.TaskHeartbeat(progress_by=AT - 2 + away, note="its supervisor was away")
        assert decision == Decision(facts=(spared,))
    else:
        assert decision.facts[0].type == "task.reaped"


def test_an_expired_approval_ends_the_task_without_a_dead_letter() -> None:
    decision = fired(replace(task_awaiting_approval(), expire_at=AT))

    expired, ended = decision.facts
    assert expired == f.ExpiredApproval()
    assert isinstance(ended, f.TimedOutEnding)
    assert ended.reason == "approval_expired"
    assert kind_of_report(decision) == "failure_report"


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (task_awaiting_approval(), f.ApprovalReminded(remind_at=AT + DAY)),
        (suspended_task(), f.ApprovalReminded(remind_at=AT + DAY)),
        (task_held_by_a_person(), f.TaskReminded(remind_at=AT + DAY)),
    ],
)
def test_a_reminder_comes_again(task: Task, expected: f.Fact) -> None:
    assert fired(replace(task, remind_at=AT)) == Decision(facts=(expected,))


def test_a_doorbell_rings_again_until_that_is_switched_off() -> None:
    task = replace(dispatched_task(), ring_at=AT)

    assert fired(task) == Decision(facts=(f.TaskRang(ring_at=AT + 10 * SECOND),))
    assert fired(task, limits=Limits(ring_after=None)) == Decision(facts=(f.TaskRang(ring_at=None),))


@pytest.mark.parametrize(("run_at", "starts"), [(AT - 1, AT), (AT, AT), (AT + 1, AT + 1)])
def test_a_cooldown_lets_nothing_start_before_its_time(run_at: int, starts: int) -> None:
    task = replace(cooling_task(), recover_at=AT, run_at=run_at)

    assert fired(task) == Decision(facts=(f.TaskUnblocked(by="cooldown", run_at=starts, ends_by=NOW + DAY),))


@pytest.mark.parametrize(("reason", "retry_count"), [("dispatch_timeout", 0), ("look", None)])
def test_only_an_untaken_task_gets_all_its_retries_again(reason: str, retry_count: int | None) -> None:
    (freed,) = fired(replace(cooling_task(), recover_at=AT, reason=reason)).facts

    assert isinstance(freed, f.TaskUnblocked)
    assert freed.retry_count == retry_count


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            (OpenApproval("t.s.ask", "no", ("eve",), 9), OpenApproval("t", "payload", ("ada", "bob"), 2)),
            {"shown_hash": "payload", "by": ("ada", "bob"), "quorum": 2},
        ),
        ((), {}),
    ],
)
def test_an_unblocked_unapproved_task_requests_approval_with_its_time_back(
    asked: tuple[OpenApproval, ...], expected: dict[str, Any]
) -> None:
    held = replace(
        task_held_by_a_person(), expire_at=NOW + 50, inside=packed_inside(Inside(asked=asked)), owner="ada"
    )

    assert decide(held, to(c.Unblock, actor="ada"), AT, LIMITS) == Decision(
        facts=(
            f.TaskUnblocked(by="ada", run_at=AT, ends_by=NOW + DAY + 7),
            f.ApprovalRequested(remind_at=AT + DAY, expire_at=NOW + 57, **expected),
        )
    )


# which clock it is

DEADLINES: list[tuple[s.Status, str, str]] = [
    *((status, "ends_by", "ends_by") for status in s.LIVE),
    *((status, "guard_at", "guard") for status in s.LIVE),
    ("running", "progress_by", "reap"),
    ("dispatched", "dispatch_by", "dispatch_timeout"),
    ("waiting_approval", "expire_at", "approval_expire"),
    ("suspended", "wait_by", "inject_timeout"),
    ("suspended", "suspend_by", "suspend_cap"),
    ("blocked", "recover_at", "recover"),
    ("waiting_approval", "remind_at", "approval_remind"),
    ("suspended", "remind_at", "approval_remind"),
    ("blocked", "remind_at", "remind"),
    ("dispatched", "ring_at", "ring_again"),
]
COLUMNS = sorted({column for _, column, _ in DEADLINES})


@pytest.mark.parametrize("status", s.ALL)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_deadline_is_a_clock_only_in_its_statuses(status: s.Status, column: str) -> None:
    task = replace(BARE, status=status, guard_reason="runaway_guard", **{column: AT})
    rules = [rule for in_status, at, rule in DEADLINES if (in_status, at) == (status, column)]
    late = ("ends_by",) if status in s.LIVE else (None,)

    found, just_before = due(task, AT), due(task, AT - 1)
    assert [found.name] if found is not None else rules == []
    assert just_before is None
    name = (rules or late)[0]
    at = AT if rules else (NOW + DAY if status in s.LIVE else None)
    assert arm(task) == (at, "runaway_guard" if name == "guard" else name)


def test_the_earliest_deadline_is_the_clock_and_of_two_at_once_the_graver() -> None:
    task = replace(
        BARE, status="dispatched", ring_at=AT, dispatch_by=AT, guard_at=AT, guard_reason="crash_limit"
    )

    assert arm(replace(task, guard_at=AT + 1)) == (AT, "dispatch_timeout")
    assert arm(task) == (AT, "crash_limit")
    assert arm(replace(task, ring_at=AT - 1)) == (AT - 1, "ring_again")
    first = due(replace(task, ring_at=AT - 1), AT)
    assert first is not None
    assert first.name == "guard"


def test_a_persons_hold_stops_the_end_and_nothing_else() -> None:
    held = replace(BARE, status="blocked", ends_by=AT, held_since=NOW, remind_at=AT + 5)

    assert arm(held) == (AT + 5, "remind")
    assert due(held, AT) is None
    found = due(held, AT + 5)
    assert found is not None
    assert found.name == "remind"
    assert arm(succeeded_task()) == (None, None)
    assert clock_fires(queued_task()).status == "timeout"
