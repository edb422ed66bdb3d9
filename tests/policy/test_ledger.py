"""The ledger's four answers are a function of the effect's one row."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.model.effect import Effect
from endwell.policy import ledger
from endwell.policy.ledger import AllowExecute, LedgerAnswer, Rejected, ReturnRecordedResult, WaitOtherWorker

NOW = 1_000
TIMEOUT = 60
MARGIN = 5
INTENDED = Effect(
    namespace="n",
    key="mail",
    task_id="t",
    lineage="t",
    step="1:()mail#1",
    status="intended",
    args_hash="a",
    attempt_id="a1",
    session_id="s1",
    not_after=NOW + TIMEOUT,
    result_card=None,
    result_hash=None,
    settled_by=None,
    version=1,
    created_at=NOW,
    updated_at=NOW,
)
DONE = replace(INTENDED, status="done", result_card="card", result_hash="hash")


def asked(effect: Effect | None, *, now: int = NOW, lineage: str = "t", args: str = "a") -> LedgerAnswer:
    return ledger.answer(effect, lineage=lineage, args_hash=args, timeout=TIMEOUT, now=now, margin=MARGIN)


@pytest.mark.covers("S4.33")
def test_an_effect_that_nobody_tried_may_be_executed_until_its_time_is_over() -> None:
    assert asked(None) == AllowExecute(not_after=NOW + TIMEOUT)


def test_an_effect_that_somebody_found_not_done_may_be_executed() -> None:
    assert asked(replace(INTENDED, status="not_done"), now=NOW + 500) == AllowExecute(NOW + 500 + TIMEOUT)


@pytest.mark.covers("S4.34")
@pytest.mark.parametrize("whose", [{}, {"lineage": "another"}, {"args": "other arguments"}])
def test_an_effect_that_was_done_is_answered_with_its_result(whose: dict[str, Any]) -> None:
    assert asked(DONE, **whose) == ReturnRecordedResult("card", "hash")


@pytest.mark.covers("T15")
def test_an_effect_that_may_be_under_way_is_waited_for_until_its_time_and_a_margin_are_over() -> None:
    until = NOW + TIMEOUT + MARGIN

    assert asked(INTENDED) == WaitOtherWorker(until)
    assert asked(INTENDED, now=until - 1) == WaitOtherWorker(until)


@pytest.mark.covers("T15")
def test_after_its_time_an_intent_is_unknown_and_never_blindly_run_again() -> None:
    answer = asked(INTENDED, now=NOW + TIMEOUT + MARGIN)

    assert isinstance(answer, Rejected)
    assert answer.code == "effect_unknown"
    assert asked(replace(INTENDED, status="unknown")) == answer


def test_an_abandoned_effect_stays_abandoned() -> None:
    answer = asked(replace(INTENDED, status="abandoned", settled_by="ada"), now=NOW + 10_000)

    assert isinstance(answer, Rejected)
    assert answer.code == "effect_abandoned"
    assert "ada" in answer.message


@pytest.mark.parametrize("status", ["intended", "done", "unknown", "not_done", "abandoned"])
def test_a_key_with_other_arguments_in_another_lineage_is_a_conflict(status: Any) -> None:
    answer = asked(replace(DONE, status=status), lineage="another", args="other arguments")

    assert isinstance(answer, Rejected)
    assert answer.code == "effect_conflict"


@pytest.mark.parametrize("reason", ["same_attempt", "holder_gone", "may_repeat"])
def test_not_done_is_enough_where_nobody_can_be_at_it_or_a_second_call_does_no_harm(reason: str) -> None:
    reasons = {"same_attempt": False, "holder_gone": False, "may_repeat": False}

    assert not ledger.may_run_again(**reasons)
    assert ledger.may_run_again(**{**reasons, reason: True})


def test_a_row_without_a_result_or_a_time_is_read_as_it_is() -> None:
    assert asked(replace(INTENDED, status="done")) == ReturnRecordedResult("", "")
    timeless = replace(INTENDED, not_after=None)
    assert asked(timeless, now=MARGIN - 1) == WaitOtherWorker(MARGIN)
    assert isinstance(asked(timeless, now=MARGIN), Rejected)
