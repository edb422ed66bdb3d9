"""The walk can fail: each of these small defects, planted into the machine, is found by it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine import clocks, endings, evolve
from endwell.machine.decision import Decision, Evidence
from endwell.machine.table import ANYONE
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.task import Task
from endwell.policy.retry import RetryAt, after_failure
from tests.machine.planting import Plant, change_rule, folded, handler, rule, with_facts
from tests.machine.walk.explore import explore, main, report
from tests.machine.walk.world import World, call, small_limits
from tests.machine.walk.worlds import TIMER

SMALL_WORLD = World(
    name="small",
    tasks=2,
    limits=small_limits(deadline=3, dispatch_timeout=3, runaway_limit=3),
    submits=({}, {"approval_within": 2}, {"delay": 1}),
    suspensions=((TIMER, call("timer", "later", 2)),),
)
ENOUGH = 40_000


def _claims_do_not_count(right: Any, task: Task, *args: Any) -> Decision:
    def uncounted(fact: f.Fact) -> f.Fact:
        is_dispatch = isinstance(fact, f.TaskDispatched)
        return replace(fact, dispatch_count=task.dispatch_count) if is_dispatch else fact

    return with_facts(right(task, *args), uncounted)


def _no_lease_is_looked_at(
    right: Any, task: Task, command: Any, now: int, limits: Any, seen: Evidence
) -> Decision:
    lapsed: Decision = right(task, command, now, limits, replace(seen, session_is_live=False))
    return lapsed


def _no_key_is_looked_at(
    right: Any, task: Task, command: Any, now: int, limits: Any, seen: Evidence
) -> Decision:
    delivered: Decision = right(task, command, now, limits, replace(seen, key_holder=None))
    return delivered


def _anybody_finishes(patch: pytest.MonkeyPatch) -> None:
    change_rule(patch, c.Finish, by=ANYONE)


def _an_ended_task_can_be_cancelled(patch: pytest.MonkeyPatch) -> None:
    change_rule(patch, c.Cancel, when=s.ALL)


def _a_queued_task_forgets_ends_by(patch: pytest.MonkeyPatch) -> None:
    def forgetful(task: Task) -> tuple[int | None, str | None]:
        return (None, None) if task.status == s.QUEUED else clocks.arm(task)

    patch.setattr(evolve, "arm", forgetful)


def _one_retry_too_few(patch: pytest.MonkeyPatch) -> None:
    def strict(policy: Any, **facts: Any) -> Any:
        return after_failure(replace(policy, max_retries=policy.max_retries - 1), **facts)

    patch.setattr(endings, "after_failure", strict)


def _one_retry_too_many(patch: pytest.MonkeyPatch) -> None:
    def lenient(policy: Any, **facts: Any) -> Any:
        return after_failure(replace(policy, max_retries=policy.max_retries + 1), **facts)

    patch.setattr(endings, "after_failure", lenient)


def _failures_count_double(patch: pytest.MonkeyPatch) -> None:
    def double(policy: Any, **facts: Any) -> Any:
        verdict = after_failure(policy, **facts)
        if isinstance(verdict, RetryAt):
            return RetryAt(verdict.at, verdict.retry_count + 1)
        return verdict

    patch.setattr(endings, "after_failure", double)


def _small_rules_first(patch: pytest.MonkeyPatch) -> None:
    wrong = {status: rules[::-1] for status, rules in clocks._BY_STATUS.items()}
    patch.setattr(clocks, "_BY_STATUS", wrong)


def _siblings_deadline_is_lost(decision: Decision, task: Task) -> Decision:
    def lost(fact: f.Fact) -> f.Fact:
        return replace(fact, wait_by=None) if isinstance(fact, f.WaitAnswered) else fact

    return with_facts(decision, lost)


def _nothing_resumes(decision: Decision, task: Task) -> Decision:
    return with_facts(decision, lambda fact: None if isinstance(fact, f.TaskResumed) else fact)


def _rings_for_ever(decision: Decision, task: Task) -> Decision:
    return with_facts(decision, lambda fact: replace(fact, ring_at=task.ring_at))


def _turn_end_is_forgotten(right: Any, *args: Any) -> Decision:
    return with_facts(right(*args), lambda fact: None if isinstance(fact, f.TurnEnded) else fact)


def _letter_for_the_cancelled(right: Any, *args: Any) -> Decision:
    decision: Decision = right(*args)
    return replace(decision, facts=(*decision.facts, f.TaskDeadLettered(fingerprint="x")))


def _no_deliverable(right: Any, *args: Any) -> Decision:
    decision: Decision = right(*args)
    return replace(decision, cards=())


DEFECTS: dict[str, Plant] = {
    "a claim that does not count": handler(c.Claim, _claims_do_not_count),
    "a finish without fencing": _anybody_finishes,
    "a turn end that keeps the turn": folded(
        f.TurnEnded, lambda before, after, fact: replace(after, turn_id=before.turn_id)
    ),
    "a turn end that keeps the attempt": folded(
        f.TurnEnded, lambda before, after, fact: replace(after, attempt_id=before.attempt_id)
    ),
    "a finish without a turn end": handler(c.Finish, _turn_end_is_forgotten),
    "a queued task without ends_by": _a_queued_task_forgets_ends_by,
    "a timer that takes its sibling's deadline": rule("inject_timeout", _siblings_deadline_is_lost),
    "a timer that resumes nothing": rule("inject_timeout", _nothing_resumes),
    "a ring that pushes the dispatch timeout": folded(
        f.TaskRang, lambda before, after, fact: replace(after, dispatch_by=fact.ring_at)
    ),
    "a ring that rings for ever": rule("ring_again", _rings_for_ever),
    "a retry too few": _one_retry_too_few,
    "a retry too many": _one_retry_too_many,
    "failures that count double": _failures_count_double,
    "a reclaim that ignores the lease": handler(c.Reclaim, _no_lease_is_looked_at),
    "a claim that ignores the key": handler(c.Claim, _no_key_is_looked_at),
    "a dispatch that ignores the key": handler(c.Dispatch, _no_key_is_looked_at),
    "an ended task that can be cancelled": _an_ended_task_can_be_cancelled,
    "a cancelled task as a dead letter": handler(c.Cancel, _letter_for_the_cancelled),
    "an end without a deliverable": handler(c.Cancel, _no_deliverable),
    "small rules before ends_by": _small_rules_first,
    "a hand-back that costs a dispatch": folded(
        f.TaskHandedBack, lambda before, after, fact: replace(after, dispatch_count=before.dispatch_count + 1)
    ),
    "a resume without a new epoch": folded(
        f.TaskResumed, lambda before, after, fact: replace(after, epoch=before.epoch)
    ),
    "a retry that clears the guard": folded(
        f.TaskRetryScheduled, lambda before, after, fact: replace(after, guard_at=None, guard_reason=None)
    ),
    "a reclaim that forgets old crashes": folded(
        f.TaskReclaimed, lambda before, after, fact: replace(after, crash_times=None)
    ),
    "a block that evades the approval": folded(
        f.TaskBlocked, lambda before, after, fact: replace(after, expire_at=None)
    ),
    "an accepted hold that does not stop ends_by": folded(
        f.TaskAssigned, lambda before, after, fact: replace(after, held_since=None)
    ),
    "a hold that no person accepted stops ends_by": folded(
        f.TaskBlocked, lambda before, after, fact: replace(after, held_since=fact.remind_at)
    ),
    "a hold whose time is not given back": folded(
        f.TaskUnblocked, lambda before, after, fact: replace(after, ends_by=before.ends_by)
    ),
    "a cooldown that starts a task early": folded(
        f.TaskUnblocked, lambda before, after, fact: replace(after, run_at=before.updated_at)
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_walk_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[name](monkeypatch)

    walk = explore(SMALL_WORLD, ENOUGH)

    assert walk.violation is not None
    assert len(report(walk)) > 2


def test_the_same_walk_finds_nothing_in_the_right_machine() -> None:
    assert explore(SMALL_WORLD, ENOUGH).violation is None


def test_the_longer_walk_ends_with_1_and_the_way_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _an_ended_task_can_be_cancelled(monkeypatch)

    assert main(["--states", "5000"]) == 1

    said = capsys.readouterr().out
    assert "an ended task moved" in said
    assert "Cancel(" in said
    assert "no task | 2 of 2 leases hold" in said
