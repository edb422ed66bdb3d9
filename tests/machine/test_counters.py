"""The counters: retries, dispatches, crashes, and the guard behind them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from endwell import errors as e
from endwell.machine.clocks import RULE_NAMES
from endwell.machine.decide import decide
from endwell.machine.decision import Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.moments import SECOND
from endwell.model.task import Task, error_of
from endwell.policy.limits import Limits
from tests.machine.stages import (
    ENDED_STAGES,
    LAPSED,
    LIMITS,
    NOW,
    clock_fires,
    dispatched_task,
    give,
    offer,
    queued_task,
    retrying,
    running_task,
    to,
)

HOUR = 3600 * SECOND
Loop = Callable[[Task, int], Task]


def executed_until_it_ends(limits: Limits) -> tuple[Task, int]:
    """A task that fails in every execution, and how many there were."""
    task, executions = queued_task(), 0
    while not task.is_ended:
        now = max(NOW, task.run_at)
        task = give(give(task, to(c.Claim), now, limits), to(c.FailTurn), now, limits)
        executions += 1
    return task, executions


@pytest.mark.covers("S4.29", "S4.36", "T18")
def test_three_retries_give_four_executions() -> None:
    task, executions = executed_until_it_ends(LIMITS)

    assert LIMITS.retry.max_retries == 3
    assert executions == 4
    assert (task.status, task.reason, task.retry_count) == ("failed", "retries_exhausted", 4)
    assert task.dead_letter == "open"


@pytest.mark.covers("S4.30")
@pytest.mark.parametrize("retries", [0, 1, 5])
def test_each_failure_counts_once(retries: int) -> None:
    task, executions = executed_until_it_ends(retrying(retries))

    assert task.retry_count == executions == retries + 1


@pytest.mark.covers("S4.31")
def test_retries_wait_longer_each_time() -> None:
    limits = retrying(3, 60, 300, 900)
    task, now, waited = running_task(), NOW, []
    while not (task := give(task, to(c.FailTurn), now, limits)).is_ended:
        waited.append((task.run_at - now) // (60 * SECOND))
        now = task.run_at
        task = give(task, to(c.Claim), now, limits)

    assert waited == [1, 5, 15]


def test_a_reaped_turn_and_a_dispatch_timeout_are_failures_too() -> None:
    reaped, not_taken = clock_fires(running_task()), clock_fires(dispatched_task(), now=NOW + 30 * SECOND)

    assert (reaped.retry_count, reaped.reason) == (1, "timeout_reaped_by_watchdog")
    assert (not_taken.retry_count, not_taken.reason) == (1, "dispatch_timeout")


@pytest.mark.covers("S2.21")
def test_an_untaken_task_is_held_for_its_owner_after_its_last_retry() -> None:
    task, now = queued_task(owner="ada"), NOW
    for timeouts in range(1, 5):
        now = max(now, task.run_at)
        task = clock_fires(give(task, to(c.Dispatch), now), now=now + 30 * SECOND)
        now += 30 * SECOND
        assert (task.status, task.retry_count) == ("queued" if timeouts < 4 else "blocked", timeouts)

    assert (task.reason, task.owner, task.turn_id) == ("dispatch_timeout", "ada", None)
    assert (task.clock_at, task.held_since) == (task.ends_by, None)
    again = give(task, to(c.Unblock), now)
    assert (again.status, again.retry_count, again.dispatch_count) == ("queued", 0, 4)
    assert again.ends_by == task.ends_by


@pytest.mark.covers("S0.49", "S0.84")
def test_a_task_that_no_worker_takes_ends_as_timeout_unless_the_person_acts() -> None:
    task = task_no_worker_took()
    assert clock_fires(task, now=task.ends_by - 1).status == "blocked"

    decision = offer(task, c.ClockFired, task.ends_by)

    kinds = [type(fact) for fact in decision.facts]
    assert kinds == [f.TimedOutEnding, f.TaskDeadLettered]
    ended = clock_fires(task, now=task.ends_by)
    assert (ended.status, ended.reason, ended.dead_letter) == ("timeout", "dispatch_timeout", "open")
    assert (ended.deliverable_card, len(decision.cards)) == (decision.cards[0].id, 1)
    error = error_of(ended)
    assert error is not None
    assert error.message == "no worker took the turn in time"


def test_a_person_who_accepts_the_task_stops_ends_by_from_then_on() -> None:
    task = task_no_worker_took()
    accepted = give(task, to(c.Assign, owner="ada"), task.ends_by - 60 * SECOND)
    assert accepted.clock_rule == "remind"

    much_later = task.ends_by + 3600 * SECOND
    reminded = clock_fires(accepted, now=max(much_later, accepted.remind_at or 0))
    assert (reminded.status, reminded.held_since) == ("blocked", accepted.held_since)
    freed = give(accepted, to(c.Unblock), much_later)
    assert freed.ends_by - much_later == 60 * SECOND


def test_a_person_who_accepts_the_task_too_late_finds_it_ended() -> None:
    ended = clock_fires(task_no_worker_took())

    assert isinstance(offer(ended, c.Assign, owner="ada").refusal, e.TaskEnded)


def task_no_worker_took() -> Task:
    """Blocked after its last retry, with its owner informed."""
    task, now = queued_task(owner="ada"), NOW
    while task.status == "queued":
        now = max(now, task.run_at)
        task = clock_fires(give(task, to(c.Dispatch), now), now=now + 30 * SECOND)
        now += 30 * SECOND
    return task


@pytest.mark.covers("S2.1", "S2.29")
def test_a_new_task_was_never_dispatched() -> None:
    assert Task("default", "t", "coder").dispatch_count == 0
    assert queued_task().dispatch_count == 0


@pytest.mark.covers("S2.2", "S2.30", "S2.31", "T12")
@pytest.mark.parametrize("agent", ["coder", "reviewer"])
def test_every_delivery_counts_in_the_commit_that_makes_it(agent: str) -> None:
    dispatched = dispatched_task(agent=agent)
    claimed = give(queued_task(agent=agent), to(c.Claim))
    lost = give(claimed, to(c.Reclaim), seen=LAPSED)

    assert dispatched.dispatch_count == claimed.dispatch_count == lost.dispatch_count == 1
    assert give(dispatched, to(c.Claim)).dispatch_count == 1
    assert give(lost, to(c.Dispatch)).dispatch_count == 2


@pytest.mark.covers("S2.2", "T12")
def test_a_delivery_that_is_refused_does_not_count() -> None:
    task = queued_task(agent_key="issue-42", delay=SECOND)

    too_early = offer(task, c.Dispatch)
    busy = decide(task, to(c.Dispatch), NOW + SECOND, LIMITS, Evidence(key_holder="another"))

    assert (too_early.facts, busy.facts) == ((), ())


def test_a_hand_back_costs_the_task_nothing() -> None:
    task = running_task()

    again = give(give(task, to(c.HandBack)), to(c.Claim, attempt_id="a2"))

    same = ("dispatch_count", "retry_count", "crash_count", "turn_id", "turn_number", "ends_by")
    assert all(getattr(again, name) == getattr(task, name) for name in same)


def test_a_resume_does_not_count_and_raises_the_epoch() -> None:
    task = give(running_task(), to(c.Suspend))
    resumed = give(task, to(c.Answer))

    again = give(resumed, to(c.Claim, attempt_id="a2"))

    assert (again.dispatch_count, again.turn_id) == (1, task.turn_id)
    assert task.epoch < resumed.epoch < again.epoch


@pytest.mark.covers("T12")
def test_going_back_and_forth_never_resets_the_count() -> None:
    task, now = queued_task(), NOW
    for count in range(1, 5):
        task = give(task, to(c.Claim), now, retrying(9))
        assert task.dispatch_count == count
        task = give(task, to(c.FailTurn), now, retrying(9))
        now = task.run_at
    assert task.dispatch_count == 4


def losing_leases(task: Task, now: int) -> Task:
    return give(give(task, to(c.Claim), now), to(c.Reclaim), now, seen=LAPSED)


def failing(task: Task, now: int) -> Task:
    limits = retrying(99, 0)
    return give(give(task, to(c.Claim), now, limits), to(c.FailTurn), now, limits)


def not_being_taken(task: Task, now: int) -> Task:
    return clock_fires(give(task, to(c.Dispatch), now), now=now + 30 * SECOND, limits=retrying(99, 0))


def being_blocked(task: Task, now: int) -> Task:
    return give(give(give(task, to(c.Dispatch), now), to(c.Block), now), to(c.RunNow), now)


@pytest.mark.covers("S2.3", "S2.4", "S2.5", "S2.6", "S2.10", "S2.11", "S2.26", "S2.27")
@pytest.mark.parametrize("loop", [losing_leases, failing, not_being_taken, being_blocked])
def test_the_tenth_delivery_of_any_loop_is_the_last(loop: Loop) -> None:
    task, now = queued_task(), NOW
    while task.guard_at is None and not task.is_ended:
        now += HOUR
        task = loop(task, now)

    ended = task if task.is_ended else clock_fires(task)

    assert (ended.status, ended.reason, ended.dispatch_count) == ("failed", "runaway_guard", 10)
    assert ended.dead_letter == "open"


@pytest.mark.covers("S2.15")
@pytest.mark.parametrize("agent", ["task", "mail", "toolchain"])
def test_the_guard_does_not_ask_what_kind_of_task_it_is(agent: str) -> None:
    task = give(queued_task(agent=agent), to(c.Dispatch), limits=Limits(runaway_limit=1))

    assert clock_fires(task).reason == "runaway_guard"


@pytest.mark.covers("S2.18", "S2.19", "S2.20")
def test_the_tenth_dispatch_sets_the_guard_and_the_clock_ends_it_before_anything_else() -> None:
    at_once = Limits(runaway_limit=1, dispatch_timeout=0, ring_after=0, active_reap=0)
    dispatched = give(queued_task(), to(c.Dispatch), limits=at_once)
    running = give(queued_task(), to(c.Claim), limits=at_once)

    for task in (dispatched, running):
        assert (task.clock_at, task.clock_rule) == (NOW, "runaway_guard")
        assert clock_fires(task, limits=at_once).reason == "runaway_guard"
    assert decide(dispatched, to(c.Claim), NOW, at_once).refusal is not None
    assert RULE_NAMES[:4] == ("ends_by", "guard", "reap", "dispatch_timeout")


@pytest.mark.covers("S2.16")
@pytest.mark.parametrize("kind", [c.HandBack, c.FailTurn, c.Suspend, c.Block, None])
def test_the_guard_ends_the_task_in_any_live_status(kind: type[c.TaskCommand] | None) -> None:
    guarded = give(queued_task(), to(c.Claim), limits=Limits(runaway_limit=1))
    task = guarded if kind is None else give(guarded, to(kind))

    assert clock_fires(task).reason == "runaway_guard"


@pytest.mark.covers("S2.17")
@pytest.mark.parametrize("stage", ENDED_STAGES)
def test_the_guard_leaves_an_ended_task_alone(stage: Callable[[], Task]) -> None:
    task = stage()

    assert task.clock_at is None
    assert decide(task, to(c.ClockFired), NOW + 99 * HOUR, Limits(runaway_limit=0)).facts == ()


@pytest.mark.covers("S2.14")
def test_legal_retries_and_crashes_stay_below_the_guard() -> None:
    task, now = queued_task(), NOW
    for _ in range(LIMITS.crash_limit - 1):
        task = losing_leases(task, now)
    while not task.is_ended:
        now = max(now, task.run_at)
        task = give(give(task, to(c.Claim), now), to(c.FailTurn), now)

    assert (task.reason, task.retry_count, task.crash_count) == ("retries_exhausted", 4, 2)
    assert task.dispatch_count == 6 < LIMITS.runaway_limit


@pytest.mark.covers("S2.22")
def test_three_crashes_within_half_an_hour_end_the_task() -> None:
    task = queued_task()
    for minute in (0, 10, 20):
        task = losing_leases(task, NOW + minute * 60 * SECOND)

    assert (task.status, task.clock_rule) == ("queued", "crash_limit")
    ended = clock_fires(task)
    assert (ended.status, ended.reason, ended.crash_count) == ("failed", "crash_limit", 3)


def test_crashes_further_apart_than_the_window_do_not_add_up() -> None:
    task = queued_task()
    for hour in range(5):
        task = losing_leases(task, NOW + hour * HOUR)

    assert (task.crash_count, task.guard_at) == (1, None)


def test_a_lost_lease_is_not_a_failure() -> None:
    assert losing_leases(queued_task(), NOW).retry_count == 0
