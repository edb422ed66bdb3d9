"""Effects: an intent first, a result or a doubt after it, and never a blind second execution."""

from __future__ import annotations

from typing import Any

import pytest

from endwell import errors as e
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.inside import inside_of
from endwell.model.moments import SECOND, moment
from endwell.policy.ledger import AllowExecute, Rejected, ReturnRecordedResult, WaitOtherWorker
from tests.machine.effects import OVER, TaskWithEffect, done, in_doubt, in_flight
from tests.machine.stages import NOW, running_task


def test_the_intent_is_written_with_the_permission_to_execute() -> None:
    pair = TaskWithEffect(running_task())

    answer = pair.give(c.IntendEffect)

    assert answer.ledger == AllowExecute(NOW + 60 * SECOND)
    assert pair.effect is not None
    assert (pair.effect.status, pair.effect.attempt_id) == ("intended", "a1")
    assert pair.effect.not_after == NOW + 60 * SECOND
    assert inside_of(pair.task).intents == ("mail",)


@pytest.mark.covers("S3.39", "S3.40")
def test_the_result_and_the_steps_record_are_one_commit() -> None:
    pair = in_flight()

    answer = pair.give(c.FinishEffect)

    assert [fact.type for fact in answer.facts] == ["effect.done", "step.recorded"]
    assert len(answer.cards) == 1
    assert pair.status == "done"
    assert inside_of(pair.task).intents == ()


@pytest.mark.covers("S3.14", "S3.15", "S3.16")
def test_a_stale_attempt_cannot_finish_an_effect_and_the_ledger_stays_as_it_was() -> None:
    pair = in_flight()
    pair.next_attempt()
    before = pair.effect

    answer = pair.give(c.FinishEffect, attempt_id="a1")

    assert isinstance(answer.refusal, e.StaleAttempt)
    assert [fact.type for fact in answer.facts] == ["write.refused"]
    assert pair.effect == before


@pytest.mark.covers("S3.16")
def test_the_current_attempt_cannot_finish_what_another_attempt_intended() -> None:
    pair = in_flight()
    pair.next_attempt()

    answer = pair.ask(c.FinishEffect, attempt_id="a2")

    assert isinstance(answer.refusal, e.StaleAttempt)
    assert answer.facts == ()


@pytest.mark.covers("T15")
def test_the_next_attempt_waits_for_an_intent_of_a_dead_one_and_then_finds_it_unknown() -> None:
    pair = in_flight()
    pair.next_attempt()
    assert isinstance(pair.ask(c.IntendEffect, attempt_id="a2").ledger, WaitOtherWorker)

    answer = pair.give(c.IntendEffect, OVER, attempt_id="a2")

    assert isinstance(answer.ledger, Rejected)
    assert (answer.ledger.code, pair.status) == ("effect_unknown", "unknown")


@pytest.mark.covers("S3.41")
def test_an_effect_done_before_is_returned_and_recorded_as_a_reference() -> None:
    pair = done()
    pair.next_attempt()

    answer = pair.give(c.IntendEffect, attempt_id="a2", step="2:()mail#1")

    assert isinstance(answer.ledger, ReturnRecordedResult)
    assert [card.kind for card in answer.cards] == ["step.reference"]
    assert pair.status == "done"


@pytest.mark.parametrize("verdict", ["done", "not_done", "abandon"])
def test_a_settled_effect_cannot_be_settled_again(verdict: str) -> None:
    refusal = done().ask(c.SettleEffect, verdict=verdict).refusal

    assert refusal is not None
    assert refusal.code == "effect_settled"


def test_a_timed_out_effect_is_unknown_and_not_executed_again() -> None:
    pair = in_doubt()

    answer = pair.ask(c.IntendEffect, OVER)

    assert pair.status == "unknown"
    assert isinstance(answer.ledger, Rejected)


@pytest.mark.parametrize("stage", ["in flight", "in doubt"])
def test_its_own_attempt_may_say_not_done_at_once_only_if_its_call_ended_by_itself(stage: str) -> None:
    pair = in_flight() if stage == "in flight" else in_doubt()
    refusal = pair.ask(c.SettleEffect, OVER - 1, verdict="not_done", attempt_id="a1").refusal
    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    assert pair.ask(c.SettleEffect, OVER, verdict="not_done", attempt_id="a1").refusal is None

    pair.give(c.SettleEffect, verdict="not_done", attempt_id="a1", call_ended=True)

    assert isinstance(pair.ask(c.IntendEffect).ledger, AllowExecute)


def test_that_the_holder_is_gone_is_enough_only_after_its_time() -> None:
    """What a dead process sent may still be carried out."""
    pair = in_doubt()
    pair.next_attempt()
    said = {"verdict": "not_done", "attempt_id": "a2", "holder_gone": True}

    refusal = pair.ask(c.SettleEffect, OVER - 1, **said).refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    assert pair.ask(c.SettleEffect, OVER, **said).refusal is None


@pytest.mark.parametrize("stage", ["in flight", "in doubt"])
def test_a_persons_not_done_before_its_time_is_refused_with_the_moment_unless_forced(stage: str) -> None:
    pair = in_flight() if stage == "in flight" else in_doubt()

    refusal = pair.ask(c.SettleEffect, OVER - 1, verdict="not_done").refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    assert moment(OVER) in refusal.message
    assert pair.ask(c.SettleEffect, OVER, verdict="not_done").refusal is None
    pair.give(c.SettleEffect, NOW + 1, verdict="not_done", force=True)
    assert pair.effect is not None
    assert (pair.effect.status, pair.effect.settled_by) == ("not_done", "ada")


def test_a_persons_not_done_is_refused_while_a_worker_reports_the_call_in_progress() -> None:
    pair = in_doubt()

    refusal = pair.ask(c.SettleEffect, OVER, verdict="not_done", is_running=True).refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    forced = pair.ask(c.SettleEffect, OVER, verdict="not_done", is_running=True, force=True)
    assert [fact.is_forced for fact in forced.facts if isinstance(fact, f.EffectSettled)] == [True]


def test_an_attempt_cannot_force_anything() -> None:
    pair = in_doubt()

    refusal = pair.ask(c.SettleEffect, OVER - 1, verdict="not_done", attempt_id="a1", force=True).refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"


@pytest.mark.parametrize("reason", ["holder_gone", "may_repeat"])
def test_another_attempt_runs_it_again_only_where_that_does_no_harm(reason: str) -> None:
    pair = in_flight()
    pair.next_attempt()
    pair.give(c.IntendEffect, OVER, attempt_id="a2")
    refusal = pair.ask(c.SettleEffect, OVER, verdict="not_done", attempt_id="a2").refusal
    assert refusal is not None
    assert refusal.code == "effect_unknown"

    pair.give(c.SettleEffect, OVER, verdict="not_done", attempt_id="a2", **{reason: True})

    assert isinstance(pair.ask(c.IntendEffect, OVER, attempt_id="a2").ledger, AllowExecute)


@pytest.mark.parametrize(
    "whose",
    [{"attempt_id": "a2"}, {"attempt_id": "a2", "verdict": "not_done", "holder_gone": True}, {}],
)
def test_an_effect_in_flight_cannot_be_settled(whose: dict[str, Any]) -> None:
    pair = in_flight()
    pair.next_attempt()

    refusal = pair.ask(c.SettleEffect, OVER - 1, **whose).refusal

    assert refusal is not None
    assert refusal.code == "effect_in_flight"
    assert pair.ask(c.SettleEffect, OVER, **whose).refusal is None


def test_an_effect_of_a_dead_holder_may_be_settled_as_done_at_once() -> None:
    pair = in_flight()
    pair.next_attempt()

    assert pair.ask(c.SettleEffect, verdict="done", attempt_id="a2", holder_gone=True).refusal is None


def test_a_stale_attempt_settles_nothing() -> None:
    pair = in_flight()
    pair.next_attempt()

    assert isinstance(pair.ask(c.SettleEffect, OVER, attempt_id="a1").refusal, e.StaleAttempt)
