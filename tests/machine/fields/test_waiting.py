"""What is written when a turn begins to wait, and when no answer comes in time."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.machine.wait_settlement import next_deadline, record_answer, settle
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.message import Report
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.model.wait import Wait
from endwell.policy.waiting import MOST_BYTES
from tests.machine.fields.waits import (
    AT,
    DAY,
    GO,
    NAP,
    RESUMED,
    SIGNAL,
    SUSPENDED,
    TOLD,
    applied,
    card,
    message,
    record_of,
)
from tests.machine.stages import (
    LIMITS,
    NOW,
    asked,
    call,
    give,
    offer,
    running_task,
    seeing,
    suspended_task,
    task_waiting_for,
    to,
    tool,
    waiting_cards,
)

# beginning to wait


def test_a_suspension_has_each_deadline_and_a_net_behind_the_last() -> None:
    calls = (tool("w1", 60, name="look"), call("call", "sub", 90, is_child=True), replace(GO, is_child=True))
    task = running_task(deadline=80 * SECOND)

    assert offer(task, c.Suspend, calls=calls) == Decision(
        facts=(
            f.TaskSuspended(
                waits=(
                    Wait("t.s.w1", "tool", AT, name="look"),
                    Wait("t.s.sub", "call", NOW + 80 * SECOND),
                    Wait("t.s.go", "signal", AT, name="go"),
                ),
                wait_by=AT,
                suspend_by=NOW + 110 * SECOND,
                children=2,
                call_hashes=("h", "", ""),
            ),
        ),
        cards=(card("t.c.w1", "tool.call", b"{}", "h"),),
    )


def test_a_question_to_people_has_its_own_card_and_event() -> None:
    question = asked(60, name="Pay?", by=("ada", "bob"), quorum=2)
    suspended, requested = offer(running_task(), c.Suspend, calls=(tool("w1", 90), question)).facts

    assert suspended.type == "task.suspended"
    assert requested == f.ApprovalRequested(
        id="t.s.ask",
        remind_at=NOW + DAY,
        expire_at=AT,
        shown_hash="shown",
        question="Pay?",
        by=("ada", "bob"),
        quorum=2,
    )
    cards = offer(running_task(), c.Suspend, calls=(replace(question, content=b"[1]"),)).cards
    assert cards == (card("t.q.ask", "approval.shown", b"[1]", "shown"),)


def test_content_that_is_empty_is_kept_as_nothing() -> None:
    cards = offer(running_task(), c.Suspend, calls=(tool("w1", content=b""),)).cards

    assert cards == (card("t.c.w1", "tool.call", b"null", "h"),)


@pytest.mark.parametrize(
    ("calls", "code"),
    [
        ((replace(NAP, content=b"1" * (MOST_BYTES + 1)),), "too_many_waits"),
        ((NAP, replace(GO, tool_call_id=NAP.tool_call_id)), "same_wait_twice"),
    ],
)
def test_a_turn_asks_with_bounded_content_and_waits_for_each_call_once(
    calls: tuple[c.Call, ...], code: str
) -> None:
    refusal = decide(running_task(), to(c.Suspend, calls=calls), NOW, LIMITS, seeing()).refusal
    assert refusal is not None
    assert refusal.code == code


def test_the_waits_of_early_signals_are_found_without_a_search() -> None:
    def steps_for(count: int) -> int:
        """How many functions are called to apply this number of signals to as many waits."""
        waits = tuple(call("signal", f"go{number}", name="go") for number in range(count))
        early = [replace(SIGNAL, id=f"x{n}", correlation_id=f"t.go.x{n}") for n in range(count)]
        called = 0

        def on_call(frame: object, event: str, argument: object) -> None:
            nonlocal called
            called += event in ("call", "c_call")

        command = to(c.Suspend, calls=waits)
        sys.setprofile(on_call)
        try:
            decision = decide(running_task(), command, NOW, LIMITS, seeing(*early))
        finally:
            sys.setprofile(None)
        answered = [fact.tool_call_id for fact in decision.facts if isinstance(fact, f.WaitAnswered)]
        assert answered == [wait.tool_call_id for wait in waits]
        return called

    assert steps_for(800) < 2.5 * steps_for(400)


@pytest.mark.parametrize("kind", ["timer", "approval"])
@pytest.mark.parametrize(("seconds", "is_refused"), [(59, False), (60, True), (61, True)])
def test_a_sleep_or_a_question_must_end_before_the_task_does(
    kind: Any, seconds: int, is_refused: bool
) -> None:
    task = running_task(deadline=60 * SECOND)

    for one, refused in ((call(kind, "x", seconds), is_refused), (tool("w1", seconds), False)):
        assert (offer(task, c.Suspend, calls=(one,)).refusal is not None) is refused


# time


def overdue(task: Task, now: int = AT, seen: Evidence | None = None) -> Decision:
    sight = waiting_cards(task) if seen is None else seen
    return decide(task, to(c.InjectTimeout, task), now, LIMITS, sight)


def test_an_overdue_tool_is_reported_to_the_inbox_once() -> None:
    report = message("timeout", "t.s.w1", Report("timeout", TOLD), id="t.s.w1~timeout", created_at=AT)
    content = json.dumps({"error": TOLD, "status": "timeout"}, separators=(",", ":")).encode()

    assert overdue(SUSPENDED) == Decision(
        facts=(f.WaitExpired(reported=("t.s.w1",), wait_by=NOW + 90 * SECOND),),
        cards=(card("t.a.w1~timeout", "tool.result", content, at=AT),),
        messages=(replace(report, card_id="t.a.w1~timeout"),),
    )
    assert overdue(SUSPENDED, AT - 1) == Decision()
    assert overdue(give(SUSPENDED, to(c.InjectTimeout), AT, seen=waiting_cards(SUSPENDED)), AT) == Decision()
    assert overdue(give(SUSPENDED, to(c.Answer)), AT) == Decision()


def test_a_tool_without_a_card_is_skipped_and_a_signal_needs_none() -> None:
    waiting = task_waiting_for(tool("w1"), GO, call("call", "sub"))

    decision = overdue(waiting, seen=Evidence())

    assert decision.facts == (f.WaitExpired(reported=("t.s.go", "t.s.sub"), skipped=("t.s.w1",)),)
    assert [one.correlation_id for one in decision.messages] == ["t.s.go", "t.s.sub"]


@pytest.mark.parametrize(("now", "facts"), [(AT - 1, 0), (AT, 2)])
def test_a_sleep_is_over_at_its_time(now: int, facts: int) -> None:
    decision = overdue(task_waiting_for(NAP), now)

    assert len(decision.facts) == facts
    if facts:
        assert decision == Decision(
            facts=(applied("nap", None), replace(RESUMED, run_at=AT)),
            cards=(record_of("nap", AT, status="success"),),
        )


def test_an_undecided_approval_expires_beside_reported_waits() -> None:
    waiting = task_waiting_for(tool("w1"), asked(), tool("w2", 90))

    decision = overdue(waiting)

    later = NOW + 90 * SECOND
    assert decision.facts == (
        f.WaitExpired(reported=("t.s.w1",), wait_by=AT),
        f.ExpiredApproval(id="t.s.ask"),
        applied("ask", later, "expired"),
    )
    assert decision.cards[1:] == (record_of("ask", AT, status="expired"),)


# settling


def test_only_what_is_open_and_not_reported_has_a_deadline() -> None:
    waits = (
        Wait("a", "tool", 5, wait_status="applied"),
        Wait("b", "tool", 6, is_reported=True),
        Wait("c", "tool", 8),
        Wait("d", "tool", 7),
    )

    assert next_deadline(waits) == 7
    assert next_deadline(waits[:2]) is None


def test_an_answer_to_nothing_settles_nothing() -> None:
    task = suspended_task()
    answer = record_answer(task, "t.s.w1", NOW, status="success")
    closed = (Wait("t.s.w1", "tool", 5, wait_status="applied"), Wait("t.s.w2", "tool", 9))

    assert settle(task, closed, NOW, {"t.s.w1": answer}) == Decision()
    assert settle(task, closed, NOW, {}) == Decision()
