"""No stale worker changes anything, and only a lapsed lease is taken away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from endwell import errors as e
from endwell.machine.decide import decide
from endwell.machine.table import FENCED
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from tests.machine.stages import (
    LAPSED,
    LIMITS,
    NOW,
    clock_fires,
    dispatched_task,
    fold,
    give,
    offer,
    queued_task,
    reclaimed_task,
    running_task,
    succeeded_task,
    suspended_task,
    to,
)
from tests.machine.walk.step import ONLY_BY_HOLDER

LATER = NOW + 60 * SECOND
Stage = Callable[[], Task]


def test_the_table_fences_exactly_what_only_the_holder_may_send() -> None:
    assert set(ONLY_BY_HOLDER) == FENCED


@pytest.mark.covers("S3.9", "S3.17", "T14")
@pytest.mark.parametrize("kind", ONLY_BY_HOLDER)
def test_a_late_worker_cannot(kind: type[c.TaskCommand]) -> None:
    task = give(reclaimed_task(), to(c.Claim, attempt_id="a2", session_id="s2"))

    answer = offer(task, kind, attempt_id="a1")

    assert isinstance(answer.refusal, e.StaleAttempt)
    assert [fact.type for fact in answer.facts] == ["write.refused"]
    after = fold(task, answer, NOW)
    assert (after.attempt_id, after.session_id, after.progress_by) == ("a2", "s2", task.progress_by)


@pytest.mark.covers("T16")
def test_a_session_that_won_its_task_back_cannot_renew_it_with_its_old_attempt() -> None:
    task = give(reclaimed_task(), to(c.Claim, attempt_id="a2", session_id="s1"))

    assert isinstance(offer(task, c.Progress, attempt_id="a1").refusal, e.StaleAttempt)
    assert offer(task, c.Progress, attempt_id="a2").refusal is None


@pytest.mark.covers("T7")
def test_progress_holds_off_the_reaper_and_a_reaped_worker_is_harmless() -> None:
    task = running_task()
    half = NOW + 200 * SECOND
    task = give(task, to(c.Progress, task), half)
    assert task.progress_by == half + 300 * SECOND

    reaped = clock_fires(task)

    assert reaped.status == "queued"
    assert isinstance(offer(reaped, c.Finish, LATER).refusal, e.StaleAttempt)


def test_a_lease_that_holds_is_not_reclaimed() -> None:
    task = running_task()

    refusal = offer(task, c.Reclaim).refusal
    assert refusal is not None
    assert refusal.code == "lease_holds"


def test_an_attempt_that_its_worker_forgot_is_reclaimed_though_the_lease_holds() -> None:
    assert give(running_task(), to(c.Reclaim, reason="unnamed")).redelivery == "reclaim"


@pytest.mark.covers("S3.10")
@pytest.mark.parametrize("stage", [suspended_task, queued_task, dispatched_task, succeeded_task])
def test_only_a_running_task_is_reclaimed(stage: Stage) -> None:
    task = stage()

    answer = decide(task, to(c.Reclaim, task), NOW, LIMITS, LAPSED)

    assert answer.refusal is not None
    assert not answer.facts


def test_two_supervisors_reclaim_once() -> None:
    answer = decide(reclaimed_task(), to(c.Reclaim), NOW, LIMITS, LAPSED)

    assert isinstance(answer.refusal, e.WrongStatus)
    assert not answer.facts


def test_a_supervisor_that_saw_an_earlier_attempt_does_not_take_the_task_from_the_next() -> None:
    task = give(reclaimed_task(), to(c.Claim, attempt_id="a2", session_id="s2"))

    answer = decide(task, to(c.Reclaim, attempt_id="a1"), NOW, LIMITS, LAPSED)

    assert isinstance(answer.refusal, e.WrongStatus)
    assert not answer.facts


@pytest.mark.covers("T19")
def test_a_reclaim_redelivers_the_turn_and_a_retry_makes_a_new_one() -> None:
    task = running_task()
    redelivered = give(reclaimed_task(), to(c.Dispatch))
    retried = give(give(task, to(c.FailTurn, task)), to(c.Dispatch), LATER)

    assert redelivered.turn_id == task.turn_id
    assert retried.turn_id != task.turn_id
    assert redelivered.id == retried.id == task.id
    assert task.epoch < redelivered.epoch
