"""What the machine answers while a task waits: for answers, for people, for its time."""

from __future__ import annotations

import pytest

from endwell import errors as e
from endwell.model import commands as c
from endwell.model.task import Wait, waits_of
from endwell.policy.limits import SECOND
from tests.machine.stages import (
    LIMITS,
    NOW,
    clock_fires,
    cooling_task,
    dispatched_task,
    give,
    offer,
    queued_task,
    running_task,
    suspended_task,
    task_awaiting_approval,
    task_held_by_a_person,
    to,
)

LATER = NOW + 60 * SECOND


# waiting for answers


def test_the_first_answer_counts_and_the_second_moves_nothing() -> None:
    task = give(suspended_task(60, 90), to(c.Answer, tool_call_id="w1"))

    assert task.status == "suspended"
    assert offer(task, c.Answer, tool_call_id="w1", result_card="late").facts == ()
    assert give(task, to(c.Answer, tool_call_id="w2")).status == "queued"


def test_an_overdue_wait_leaves_its_sibling_its_own_deadline() -> None:
    task = clock_fires(suspended_task(60, 90))

    assert [wait.wait_status for wait in waits_of(task)] == ["expired", "waiting"]
    assert (task.status, task.clock_at, task.clock_rule) == ("suspended", NOW + 90 * SECOND, "inject_timeout")


def test_a_supervisor_that_comes_late_expires_every_wait_at_once() -> None:
    task = clock_fires(suspended_task(60, 90), now=NOW + 3600 * SECOND)

    assert [wait.wait_status for wait in waits_of(task)] == ["expired", "expired"]
    assert (task.status, task.redelivery) == ("queued", "resume")


def test_no_wait_goes_beyond_ends_by() -> None:
    task = running_task()
    task = give(task, to(c.Suspend, task, waits=(Wait("w", "timer", task.ends_by + SECOND),)))

    assert (task.wait_by, task.clock_at) == (task.ends_by, task.ends_by)


# people


def test_a_hold_stops_ends_by_and_its_time_is_given_back() -> None:
    task = task_held_by_a_person()
    assert (task.clock_rule, task.owner) == ("remind", "ada")
    much_later = task.ends_by + 3600 * SECOND
    assert clock_fires(task, now=much_later).status == "blocked"

    freed = give(task, to(c.RunNow), much_later)

    assert freed.ends_by - much_later == task.ends_by - NOW


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
def test_trying_a_task_again_that_nobody_approved_asks_for_approval_again(kind: type[c.TaskCommand]) -> None:
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
