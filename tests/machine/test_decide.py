"""What the machine answers, one sentence at a time: claiming, ending, submitting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from endwell import errors as e
from endwell.machine.decide import decide
from endwell.machine.decision import Evidence
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.task import Task
from tests.machine.stages import (
    BAD_INPUT,
    ENDED_STAGES,
    LAPSED,
    LIMITS,
    LIVE_STAGES,
    NOW,
    cancelled_task,
    clock_fires,
    dead_letter,
    give,
    offer,
    queued_task,
    reclaimed_task,
    running_task,
    submit,
    succeeded_task,
    task_held_by_a_person,
    task_to_retry,
    to,
)

LATER = NOW + 60 * SECOND
Stage = Callable[[], Task]


def facts_of(task: Task, kind: type[c.TaskCommand], now: int = NOW, **options: Any) -> list[str]:
    return [fact.type for fact in offer(task, kind, now, **options).facts]


# claiming


@pytest.mark.covers("S3.7")
def test_each_claim_makes_a_new_attempt() -> None:
    task = running_task()
    again = give(reclaimed_task(), to(c.Claim, attempt_id="a2", session_id="s1"))

    assert (task.attempt_id, again.attempt_id) == ("a1", "a2")


def test_a_queued_task_is_claimed_in_one_commit_with_both_events() -> None:
    assert facts_of(queued_task(), c.Claim) == ["task.dispatched", "task.claimed"]


def test_a_task_in_the_future_is_not_delivered() -> None:
    task = queued_task(delay=60 * SECOND)

    for kind in (c.Dispatch, c.Claim):
        refusal = offer(task, kind).refusal
        assert refusal is not None
        assert refusal.code == "too_early"
    assert offer(task, c.Claim, LATER).refusal is None


def test_a_session_without_a_lease_claims_nothing() -> None:
    task = queued_task()

    assert isinstance(decide(task, to(c.Claim, task), NOW, LIMITS, LAPSED).refusal, e.StaleAttempt)


def test_one_turn_at_a_time_per_agent_key() -> None:
    task = queued_task(agent_key="issue-42")

    refusal = decide(task, to(c.Claim, task), NOW, LIMITS, Evidence(key_holder="another")).refusal
    assert refusal is not None
    assert refusal.code == "key_is_held"
    assert decide(task, to(c.Claim, task), NOW, LIMITS, Evidence(key_holder=task.id)).refusal is None


def test_nothing_is_delivered_after_its_last_moment() -> None:
    task = queued_task()

    refusal = offer(task, c.Claim, task.ends_by).refusal
    assert refusal is not None
    assert refusal.code == "clock_is_due"


# ending


@pytest.mark.covers("S4.12")
@pytest.mark.parametrize("stage", ENDED_STAGES)
@pytest.mark.parametrize("kind", [c.Finish, c.FailTurn, c.Cancel, c.ClockFired, c.Claim, c.Block, c.RunNow])
def test_an_ended_task_does_not_end_again(stage: Stage, kind: type[c.TaskCommand]) -> None:
    task = stage()

    answer = offer(task, kind, LATER)

    assert answer.refusal is not None
    assert all(fact.type == "write.refused" for fact in answer.facts)


@pytest.mark.parametrize("stage", LIVE_STAGES)
def test_cancel_ends_a_task_at_any_moment(stage: Stage) -> None:
    task = give(stage(), to(c.Cancel))

    assert (task.status, task.clock_at, task.dead_letter) == ("cancelled", None, None)
    assert (task.turn_id, task.attempt_id, task.session_id, task.slot) == (None, None, None, None)
    assert task.deliverable_card is not None


@pytest.mark.parametrize("stage", [stage for stage in LIVE_STAGES if stage is not task_held_by_a_person])
def test_ends_by_ends_a_task_in_every_status(stage: Stage) -> None:
    task = stage()

    ended = clock_fires(task, now=task.ends_by)

    assert (ended.status, ended.reason, ended.dead_letter) == ("timeout", "ends_by", "open")


@pytest.mark.covers("S4.37")
def test_input_beyond_repair_becomes_a_dead_letter_at_once() -> None:
    task = running_task()

    answer = offer(task, c.FailTurn, error=BAD_INPUT)

    assert [fact.type for fact in answer.facts] == ["turn.ended", "task.failed", "task.dlq"]


def test_a_finish_is_one_turn_end_one_terminal_fact_and_one_deliverable() -> None:
    answer = offer(running_task(), c.Finish)

    assert [fact.type for fact in answer.facts] == ["turn.ended", "task.succeeded"]
    assert [card.kind for card in answer.cards] == ["task.deliverable"]


def test_a_replay_makes_a_new_task_once() -> None:
    letter = dead_letter()
    answer = offer(letter, c.Replay)
    assert answer.spawn is not None
    assert answer.spawn.replay_of == letter.id

    replayed = give(letter, to(c.Replay))

    assert (replayed.status, replayed.dead_letter, replayed.superseded_by) == (
        "failed",
        "replayed",
        "t-again",
    )
    for kind in (c.Replay, c.Abandon):
        assert offer(replayed, kind).refusal is not None


def test_an_abandoned_letter_stays_closed() -> None:
    abandoned = give(dead_letter(), to(c.Abandon))

    assert abandoned.dead_letter == "abandoned"
    for kind in (c.Replay, c.Abandon):
        assert offer(abandoned, kind).refusal is not None


def test_a_task_that_succeeds_at_last_carries_no_error() -> None:
    retried = give(task_to_retry(), to(c.Claim), LATER)
    assert retried.error is not None

    done = give(retried, to(c.Finish), LATER)

    assert (done.error, done.reason, done.retry_count) == (None, None, 1)
    assert (done.started_at, done.ended_at) == (NOW, LATER)


def test_a_cancelled_task_that_is_tried_again_was_still_no_dead_letter() -> None:
    assert give(cancelled_task(), to(c.Replay)).dead_letter is None


# submitting


def test_submitting_the_same_again_changes_nothing() -> None:
    answer = decide(running_task(), submit(), LATER, LIMITS)

    assert (answer.facts, answer.refusal) == ((), None)


@pytest.mark.parametrize("other", [{"payload_hash": "x"}, {"agent": "x"}, {"agent_key": "x"}])
def test_the_same_key_for_something_else_is_a_conflict(other: dict[str, str]) -> None:
    answer = decide(succeeded_task(), submit(**other), LATER, LIMITS)

    assert isinstance(answer.refusal, e.IdempotencyConflict)


@pytest.mark.parametrize("kind", [c.Cancel, c.Claim, c.ClockFired, c.Finish])
def test_a_task_that_does_not_exist_is_not_found(kind: type[c.TaskCommand]) -> None:
    assert isinstance(decide(None, to(kind), NOW, LIMITS).refusal, e.NotFound)
