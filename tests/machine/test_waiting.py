"""What the machine answers while a task waits: for answers, for people, for its time."""

from __future__ import annotations

import json

import pytest

from endwell import errors as e
from endwell.machine.decide import decide
from endwell.machine.decision import Closing
from endwell.machine.evolve import evolve
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.message import Report, report_of
from endwell.model.moments import SECOND
from endwell.model.task import waits_of
from tests.machine.stages import (
    LIMITS,
    NOW,
    call,
    clock_fires,
    cooling_task,
    deliver,
    dispatched_task,
    fold,
    give,
    offer,
    queued_task,
    running_task,
    seeing,
    succeeded_task,
    suspended_task,
    task_awaiting_approval,
    task_held_by_a_person,
    task_waiting_for,
    to,
    tool,
    waiting_cards,
)

LATER = NOW + 60 * SECOND


# waiting for answers


@pytest.mark.covers("T6")
def test_the_first_answer_counts_and_the_second_is_acknowledged_and_kept() -> None:
    task = give(suspended_task(60, 90), to(c.Answer, tool_call_id="t.s.w1"))
    assert task.status == "suspended"

    second = offer(task, c.Answer, tool_call_id="t.s.w1", content=b"late")

    assert second.facts == ()
    assert [(m.status, m.watchdog_error) for m in second.messages] == [("consumed", "late")]
    assert [card.content for card in second.cards] == [b"late"]
    assert give(task, to(c.Answer, tool_call_id="t.s.w2")).status == "queued"


@pytest.mark.covers("S0.17", "S0.18", "S0.19", "S0.20", "S0.24")
def test_an_overdue_tool_is_reported_to_the_inbox_and_nothing_ends() -> None:
    task = suspended_task(60)

    answer = decide(task, to(c.InjectTimeout), LATER, LIMITS, waiting_cards(task))

    (report,) = answer.messages
    assert (report.message_type, report.status, report.correlation_id) == ("timeout", "pending", "t.s.w1")
    assert report_of(report) == Report(
        "timeout", {"code": "tool_timeout", "message": "no answer came in time"}
    )
    assert [fact.type for fact in answer.facts] == ["wait.timed_out"]
    assert fold(task, answer, LATER).status == "suspended"


@pytest.mark.covers("S0.17")
def test_an_overdue_wait_is_reported_once() -> None:
    task = clock_fires(suspended_task(60, 90))

    again = decide(task, to(c.InjectTimeout), LATER, LIMITS, waiting_cards(task))

    assert (again.facts, again.messages) == ((), ())


@pytest.mark.covers("S0.23")
def test_a_report_goes_the_way_of_every_answer() -> None:
    task = suspended_task(60)
    injected = decide(task, to(c.InjectTimeout), LATER, LIMITS, waiting_cards(task))
    told = fold(task, injected, LATER)

    applied = decide(told, deliver(injected.messages[0]), LATER, LIMITS, seeing(*injected.messages))

    assert [fact.type for fact in applied.facts] == ["wait.answered", "task.resumed"]
    assert applied.closed == (Closing(injected.messages[0].id, "consumed"),)
    record = json.loads(applied.cards[0].content)
    assert (record["status"], record["error"]["code"]) == ("timeout", "tool_timeout")
    assert record["ref"] == injected.cards[0].id


@pytest.mark.covers("T6")
@pytest.mark.parametrize("first", ["answer", "report"])
def test_of_an_answer_and_a_timeout_the_first_applies(first: str) -> None:
    task = suspended_task(60, 90)
    injected = decide(task, to(c.InjectTimeout), LATER, LIMITS, waiting_cards(task))
    report, told = injected.messages[0], fold(task, injected, LATER)
    if first == "answer":
        task = give(told, to(c.Answer), LATER)
        second = decide(task, deliver(report), LATER, LIMITS, seeing(report))
        assert second.closed == (Closing(report.id, "consumed", "late"),)
    else:
        task = give(told, deliver(report), LATER, seen=seeing(report))
        second = offer(task, c.Answer, LATER)
        assert second.messages[0].watchdog_error == "late"

    assert second.facts == ()
    statuses = {"answer": "applied", "report": "expired"}
    assert waits_of(task)[0].wait_status == statuses[first]


@pytest.mark.covers("S0.25", "S0.26", "T2")
def test_an_overdue_wait_leaves_its_sibling_its_own_deadline() -> None:
    task = clock_fires(suspended_task(60, 90))

    assert [(wait.wait_status, wait.is_reported) for wait in waits_of(task)] == [
        ("waiting", True),
        ("waiting", False),
    ]
    assert (task.status, task.clock_at, task.clock_rule) == ("suspended", NOW + 90 * SECOND, "inject_timeout")


@pytest.mark.covers("S0.27", "T2")
def test_a_tool_whose_card_is_missing_is_skipped_and_the_cap_still_ends_the_turn() -> None:
    task = task_waiting_for(tool(content=None))
    injected = decide(task, to(c.ClockFired), LATER, LIMITS)
    assert injected.messages == ()

    skipped = fold(task, injected, LATER)

    assert (skipped.status, skipped.clock_rule) == ("suspended", "suspend_cap")
    assert skipped.suspend_by == task.suspend_by
    capped = clock_fires(skipped)
    assert (capped.status, capped.reason, capped.retry_count) == ("queued", "suspend_timeout", 1)


@pytest.mark.covers("T2")
def test_a_turn_whose_reports_are_all_lost_ends_as_timeout_and_is_tried_again() -> None:
    task = clock_fires(clock_fires(suspended_task(60, 90)))
    assert (task.status, task.clock_rule) == ("suspended", "suspend_cap")

    answer = decide(task, to(c.ClockFired), task.suspend_by or 0, LIMITS)

    assert [fact.type for fact in answer.facts] == ["task.reaped", "turn.ended", "task.retry_scheduled"]
    ended = next(fact for fact in answer.facts if isinstance(fact, f.TurnEnded))
    assert (ended.outcome, ended.error) == ("timeout", "suspend_timeout")


def test_a_sleep_that_ended_without_a_supervisor_is_no_failure() -> None:
    task = task_waiting_for(call("timer", "nap", 60))

    woken = clock_fires(task, now=NOW + 3600 * SECOND)

    assert (woken.status, woken.redelivery, woken.retry_count) == ("queued", "resume", 0)


def test_a_supervisor_that_comes_late_reports_every_wait_before_the_cap() -> None:
    task = suspended_task(60, 90)

    answer = decide(task, to(c.ClockFired), NOW + 3600 * SECOND, LIMITS, waiting_cards(task))

    assert [message.correlation_id for message in answer.messages] == ["t.s.w1", "t.s.w2"]


def test_no_tool_is_waited_for_beyond_ends_by() -> None:
    task = task_waiting_for(tool(seconds=10**6))

    assert (task.wait_by, task.clock_at) == (task.ends_by, task.ends_by)


@pytest.mark.parametrize("kind", ["timer", "approval"])
def test_a_sleep_or_approval_that_cannot_end_before_the_task_is_refused_at_once(kind: str) -> None:
    task = running_task(deadline=60 * SECOND)

    refusal = offer(task, c.Suspend, calls=(call(kind, "x", 60),)).refusal

    assert isinstance(refusal, e.BadInput)
    assert (refusal.code, "deadline=" in (refusal.hint or "")) == ("beyond_deadline", True)
    assert offer(task, c.Suspend, calls=(call(kind, "x", 59),)).refusal is None


def test_an_answer_that_comes_before_the_turn_waits_for_it_is_kept_and_then_applied() -> None:
    early = offer(running_task(), c.Answer).messages
    assert [message.status for message in early] == ["pending"]

    answer = decide(running_task(), to(c.Suspend), NOW, LIMITS, seeing(*early))

    assert [fact.type for fact in answer.facts] == ["task.suspended", "wait.answered", "task.resumed"]
    assert answer.closed == (Closing(early[0].id, "consumed"),)


def test_an_answer_to_a_task_that_has_ended_is_kept_as_late() -> None:
    kept = offer(succeeded_task(), c.Answer)

    assert [(m.status, m.watchdog_error) for m in kept.messages] == [("consumed", "late")]
    assert [card.kind for card in kept.cards] == ["tool.result"]


def test_a_message_that_its_ended_task_never_read_is_skipped_visibly() -> None:
    (pending,) = offer(running_task(), c.Answer).messages

    answer = decide(succeeded_task(), deliver(pending), NOW, LIMITS, seeing(pending))

    assert answer.closed == (Closing(pending.id, "skipped", "task_ended"),)


def test_a_signal_wakes_the_turn_that_waits_for_its_name() -> None:
    task = task_waiting_for(call("signal", "s", 60, name="go"))

    assert give(task, to(c.Signal, name="go")).status == "queued"
    assert offer(task, c.Signal, name="stop").messages[0].status == "pending"


def test_an_answer_to_a_call_of_another_task_is_not_found() -> None:
    refusal = offer(suspended_task(), c.Answer, tool_call_id="other.s.w1").refusal

    assert isinstance(refusal, e.NotFound)


# people


def test_an_accepted_hold_stops_ends_by_and_its_time_is_given_back() -> None:
    task = task_held_by_a_person()
    assert (task.clock_rule, task.owner) == ("remind", "ada")
    much_later = task.ends_by + 3600 * SECOND
    assert clock_fires(task, now=much_later).status == "blocked"

    freed = give(task, to(c.RunNow), much_later)

    assert freed.ends_by - much_later == task.ends_by - NOW


def test_a_hold_of_an_earlier_version_gets_its_time_back_with_the_next_reminder_and_then_ends() -> None:
    blocked = f.TaskBlocked(reason="dispatch_timeout", owner="ada", remind_at=NOW + 60 * SECOND)
    task = evolve(queued_task(), blocked, NOW)
    assert (task.held_since, task.clock_rule) == (NOW, "remind")
    much_later = task.ends_by + 3600 * SECOND

    reminded = clock_fires(task, now=much_later)

    assert (reminded.status, reminded.held_since) == ("blocked", None)
    assert reminded.ends_by - much_later == task.ends_by - NOW
    assert clock_fires(reminded, now=reminded.ends_by).status == "timeout"


@pytest.mark.parametrize("key", ["", "mail"])
def test_a_hold_that_protects_an_unknown_effect_stops_ends_by_as_before(key: str) -> None:
    blocked = f.TaskBlocked(
        reason="effect_unknown", owner="ada", remind_at=NOW + 60 * SECOND, effect_key=key or None
    )
    task = evolve(queued_task(), blocked, NOW)
    much_later = task.ends_by + 3600 * SECOND

    reminded = clock_fires(task, now=much_later)

    assert (reminded.status, reminded.held_since, reminded.ends_by) == ("blocked", NOW, task.ends_by)


def test_a_cooldown_does_not_take_a_task_from_its_owner() -> None:
    task = queued_task(owner="ada")

    assert give(task, to(c.Block, cooldown=SECOND)).owner == "ada"
    assert give(queued_task(), to(c.Block)).owner == LIMITS.owner


def test_a_waiting_task_can_be_started_now_and_a_ready_one_needs_no_rush() -> None:
    assert give(queued_task(delay=3600 * SECOND), to(c.RunNow)).run_at == NOW
    assert offer(queued_task(), c.RunNow).facts == ()


def test_an_approval_expires_with_the_task_at_the_latest() -> None:
    task = task_awaiting_approval(deadline=60 * SECOND)

    assert task.expire_at == task.ends_by == LATER


def test_a_cooldown_ends_by_its_clock_and_starts_nothing_before_its_time() -> None:
    task = give(queued_task(delay=3600 * SECOND), to(c.Block, cooldown=60 * SECOND))

    recovered = clock_fires(task)

    assert (recovered.status, recovered.run_at) == ("queued", task.run_at)
    assert clock_fires(cooling_task(60)).run_at == LATER


@pytest.mark.parametrize("cooldown", [None, 60 * SECOND])
def test_blocking_does_not_evade_an_approval(cooldown: int | None) -> None:
    task = give(task_awaiting_approval(), to(c.Block, cooldown=cooldown))

    assert give(task, to(c.RunNow), LATER).status == "waiting_approval"
    assert cooldown is None or clock_fires(task).status == "waiting_approval"


@pytest.mark.parametrize("kind", [c.Reject, c.Cancel])
def test_a_replay_of_an_unapproved_task_requests_approval_again(kind: type[c.TaskCommand]) -> None:
    ended = give(task_awaiting_approval(), to(kind))

    again = offer(ended, c.Replay).spawn

    assert again is not None
    assert give(None, again).status == "waiting_approval"


def test_an_approval_that_expires_is_not_a_rejection() -> None:
    task = task_awaiting_approval()
    rejected, expired = give(task, to(c.Reject)), clock_fires(task, now=task.expire_at)

    assert (rejected.status, rejected.reason, rejected.dead_letter) == ("failed", "approval_rejected", None)
    assert (expired.status, expired.reason, expired.dead_letter) == ("timeout", "approval_expired", None)


def test_an_approved_task_cannot_be_approved_again() -> None:
    task = give(task_awaiting_approval(), to(c.Approve))

    assert task.status == "queued"
    assert isinstance(offer(task, c.Approve).refusal, e.WrongStatus)


# time


def test_time_never_runs_back_within_a_task() -> None:
    task = give(running_task(), to(c.Progress), LATER)

    assert offer(task, c.Progress, NOW).facts == offer(task, c.Progress, LATER).facts


def test_ringing_again_does_not_move_the_dispatch_timeout() -> None:
    task = dispatched_task()

    rung = clock_fires(clock_fires(task))

    assert rung.status == "dispatched"
    assert rung.dispatch_by == task.dispatch_by == rung.clock_at
    assert clock_fires(rung).reason == "dispatch_timeout"


def test_a_clock_that_has_not_passed_does_nothing() -> None:
    assert offer(dispatched_task(), c.ClockFired).facts == ()
