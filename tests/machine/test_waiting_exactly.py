"""What is written when a turn waits, when an answer comes, and when none does: field by field.

These tests pin every field, so that mutants are noticed: an intended change of a field changes them too.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Closing, Decision, Evidence
from endwell.machine.wait_settlement import Answered, next_deadline, record_answer, settle
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.card import Card
from endwell.model.content import fingerprint
from endwell.model.message import Message, Report, packed_report
from endwell.model.task import Task, packed_waits
from endwell.model.wait import Wait, WaitStatus
from endwell.policy.limits import SECOND
from endwell.policy.waiting import MOST_BYTES
from tests.machine.stages import (
    LIMITS,
    NOW,
    asked,
    call,
    give,
    offer,
    running_task,
    seeing,
    succeeded_task,
    suspended_task,
    task_awaiting_approval,
    task_waiting_for,
    to,
    tool,
    waiting_cards,
)

DAY = 86_400 * SECOND
AT = NOW + 60 * SECOND
TOLD = {"code": "tool_timeout", "message": "no answer came in time"}
NAP, GO = call("timer", "nap"), call("signal", "go", name="go")
SUSPENDED = task_waiting_for(tool("w1"), tool("w2", 90))


def message(kind: Any, about: str, report: Report, **changes: Any) -> Message:
    """One to the task t, while it waits in its first turn."""
    plain = Message(
        namespace="default",
        id="x",
        agent="coder",
        agent_key=None,
        message_type=kind,
        correlation_id=about,
        channel="main",
        task_id="t",
        turn_id="t.t1",
        turn_epoch=1,
        card_id="t.a.w1~x",
        payload=packed_report(report),
        status="pending",
        created_at=NOW,
    )
    return replace(plain, **changes)


ANSWER = message("tool_result", "t.s.w1", Report(hash="r"))
SIGNAL = message("signal", "t.go.x", Report(name="go", hash="r"), card_id="t.a.signal~x")


def card(card_id: str, kind: Any, content: bytes, digest: str | None = None, at: int = NOW) -> Card:
    return Card("default", card_id, "t", kind, content, digest or fingerprint(content), at)


def record_of(step: str, at: int = NOW, **said: Any) -> Card:
    content = json.dumps({"turn": "t.t1", **said}, sort_keys=True, separators=(",", ":")).encode()
    return card(f"t.s.{step}", "tool.result", content, at=at)


class AnyHash(f.WaitAnswered, frozen=True, kw_only=True, eq=False):
    """Equal to the same fact under any hash, as long as there is one."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, f.WaitAnswered) or not other.result_hash:
            return False
        names = ("tool_call_id", "wait_status", "result_card", "wait_by")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]


def applied(step: str, wait_by: int | None, status: WaitStatus = "applied") -> f.WaitAnswered:
    return AnyHash(tool_call_id=f"t.s.{step}", wait_status=status, result_card=f"t.s.{step}", wait_by=wait_by)


RESUMED = f.TaskResumed(epoch=2, run_at=NOW)


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


def test_answers_that_came_early_are_applied_at_once_each_to_one_wait() -> None:
    second = replace(ANSWER, id="y")
    signals = (SIGNAL, replace(SIGNAL, id="z", correlation_id="t.go.z", card_id="t.a.signal~z"))
    calls = (tool("w1"), GO, call("signal", "go2", name="go"))
    command = to(c.Suspend, calls=calls)

    decision = decide(running_task(), command, NOW, LIMITS, seeing(ANSWER, second, *signals))

    assert decision.facts[1:] == (applied("w1", None), applied("go", None), applied("go2", None), RESUMED)
    assert decision.closed == (
        Closing("x", "consumed"),
        Closing("x", "consumed"),
        Closing("z", "consumed"),
    )
    assert decision.cards[1:] == (
        record_of("w1", status="success", ref="t.a.w1~x"),
        record_of("go", status="success", ref="t.a.signal~x"),
        record_of("go2", status="success", ref="t.a.signal~z"),
    )
    other = decide(running_task(), to(c.Suspend, calls=(tool("w2"),)), NOW, LIMITS, seeing(ANSWER, SIGNAL))
    assert (len(other.facts), other.closed) == (1, ())


# answers


def test_an_answer_is_kept_applied_and_recorded_in_one_commit() -> None:
    first = offer(SUSPENDED, c.Answer, content=b"[1]", content_hash="r", status="failed")

    arrived = replace(ANSWER, payload=packed_report(Report("failed", hash="r")), status="consumed")
    assert first == Decision(
        facts=(applied("w1", NOW + 90 * SECOND),),
        cards=(
            card("t.a.w1~x", "tool.result", b"[1]", "r"),
            record_of("w1", status="failed", ref="t.a.w1~x"),
        ),
        messages=(arrived,),
    )
    last = offer(give(SUSPENDED, to(c.Answer)), c.Answer, tool_call_id="t.s.w2")
    assert last.facts == (applied("w2", None), RESUMED)


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        (running_task(), {}),
        (succeeded_task(), {"turn_id": None, "status": "consumed", "watchdog_error": "late"}),
        (give(SUSPENDED, to(c.Answer)), {"status": "consumed", "watchdog_error": "late"}),
    ],
)
def test_an_answer_that_is_early_or_late_is_kept(task: Task, changes: dict[str, Any]) -> None:
    assert offer(task, c.Answer) == Decision(
        cards=(card("t.a.w1~x", "tool.result", b"1", "r"),), messages=(replace(ANSWER, **changes),)
    )


def test_an_answer_to_a_turn_that_no_longer_waits_is_only_kept() -> None:
    awake = replace(SUSPENDED, status="queued")

    assert offer(awake, c.Answer).messages == (ANSWER,)
    assert offer(replace(task_waiting_for(GO), status="queued"), c.Signal).facts == ()


def test_a_signal_finds_the_wait_of_its_name() -> None:
    waiting = task_waiting_for(GO, call("signal", "stop", 90, name="stop"))

    assert offer(waiting, c.Signal, content=b"[1]") == Decision(
        facts=(applied("go", NOW + 90 * SECOND),),
        cards=(
            card("t.a.signal~x", "signal", b"[1]", "r"),
            record_of("go", status="success", ref="t.a.signal~x"),
        ),
        messages=(replace(SIGNAL, status="consumed"),),
    )
    unheard = offer(waiting, c.Signal, name="other")
    assert (unheard.facts, unheard.messages[0].status) == ((), "pending")


# messages


def delivered(task: Task, *messages: Message, wanted: str = "x") -> Decision:
    command = to(c.Deliver, task, message_id=wanted)
    return decide(task, command, NOW, LIMITS, seeing(*messages))


def test_a_message_is_consumed_by_the_wait_that_it_answers() -> None:
    error = {"code": "e", "message": "m"}
    failed = replace(ANSWER, payload=packed_report(Report("failed", error)))

    assert delivered(SUSPENDED, replace(ANSWER, id="y"), failed) == Decision(
        facts=(applied("w1", NOW + 90 * SECOND),),
        cards=(record_of("w1", status="failed", error=error, ref="t.a.w1~x"),),
        closed=(Closing("x", "consumed"),),
    )


@pytest.mark.parametrize(
    ("kind", "wait", "is_answered"),
    [
        ("tool_result", tool("w1"), True),
        ("tool_result", call("call", "w1"), True),
        ("tool_result", call("timer", "w1"), False),
        ("tool_result", call("signal", "w1"), False),
        ("child", tool("w1"), True),
        ("child", call("call", "w1"), True),
        ("child", call("approval", "w1"), False),
        ("timeout", tool("w1"), True),
        ("timeout", call("call", "w1"), True),
        ("timeout", call("signal", "w1"), True),
        ("timeout", call("approval", "w1"), False),
        ("signal", call("signal", "w1", name="go"), True),
        ("signal", call("signal", "w1", name="stop"), False),
        ("signal", tool("w1", name="go"), False),
        ("approval", call("approval", "w1"), False),
        ("nudge", tool("w1"), False),
        ("stop", tool("w1"), False),
    ],
)
def test_which_message_answers_which_wait(kind: Any, wait: c.Call, is_answered: bool) -> None:
    sent = message(kind, "t.s.w1", Report(name="go"))

    assert bool(delivered(task_waiting_for(wait), sent).facts) is is_answered


def test_a_message_without_a_wait_stays_pending_or_is_closed_as_late() -> None:
    answered = give(SUSPENDED, to(c.Answer))

    assert delivered(SUSPENDED, replace(ANSWER, correlation_id="t.s.other")) == Decision()
    assert delivered(running_task(), ANSWER) == Decision()
    assert delivered(replace(SUSPENDED, status="queued"), ANSWER) == Decision()
    assert delivered(SUSPENDED, ANSWER, wanted="other") == Decision()
    assert delivered(answered, replace(ANSWER, correlation_id="t.s.other")) == Decision()
    assert delivered(answered, ANSWER) == Decision(closed=(Closing("x", "consumed", "late"),))


def test_a_message_to_an_ended_task_is_skipped_and_the_log_says_so() -> None:
    skipped = f.InboxSkipped(message_id="x", message_type="tool_result", watchdog_error="task_ended")

    assert delivered(succeeded_task(), ANSWER) == Decision(
        facts=(skipped,), closed=(Closing("x", "skipped", "task_ended"),)
    )
    command = to(c.SkipMessage, message_id="x", why="no agent")
    assert decide(running_task(), command, NOW, LIMITS, seeing(replace(ANSWER, id="y"), ANSWER)) == Decision(
        facts=(replace(skipped, watchdog_error="no agent"),), closed=(Closing("x", "skipped", "no agent"),)
    )
    assert decide(running_task(), command, NOW, LIMITS) == Decision()


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


@pytest.mark.parametrize(
    ("status", "wait_status"),
    [("success", "applied"), ("failed", "applied"), ("timeout", "expired"), ("expired", "expired")],
)
def test_a_record_says_how_the_wait_was_answered(status: str, wait_status: WaitStatus) -> None:
    found = record_answer(suspended_task(), "t.s.w1", NOW, status=status, by=["ada"], ref=None)

    assert found == Answered(record_of("w1", status=status, by=["ada"]), wait_status)


# deciding


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
