"""The ledger's four answers are a function of the effect's one row."""

from __future__ import annotations

from itertools import chain, combinations
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


def asked(
    effect: Effect | None,
    *,
    now: int = NOW,
    lineage: str = "t",
    args: str = "a",
    step: str = "1:()mail#1",
    restored_at: int | None = None,
    asked_since: int = 0,
) -> LedgerAnswer:
    return ledger.answer(
        effect,
        lineage=lineage,
        step=step,
        args_hash=args,
        timeout=TIMEOUT,
        now=now,
        margin=MARGIN,
        restored_at=restored_at,
        asked_since=asked_since,
    )


@pytest.mark.covers("S4.33")
def test_a_new_effect_may_be_executed_until_its_time_is_over() -> None:
    assert asked(None) == AllowExecute(not_after=NOW + TIMEOUT)


def test_an_effect_settled_as_not_done_may_be_executed() -> None:
    assert asked(replace(INTENDED, status="not_done"), now=NOW + 500) == AllowExecute(NOW + 500 + TIMEOUT)


@pytest.mark.covers("S4.34")
@pytest.mark.parametrize("whose", [{}, {"lineage": "another"}])
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


@pytest.mark.parametrize("known_since", [NOW - 1, NOW, NOW + 1])
@pytest.mark.parametrize("effect", [None, replace(INTENDED, status="not_done")])
def test_an_effect_not_done_before_a_restore_is_unknown_and_a_later_one_is_allowed(
    effect: Effect | None, known_since: int
) -> None:
    if effect is not None:
        effect = replace(effect, updated_at=known_since)

    answer = asked(effect, restored_at=NOW, asked_since=known_since if effect is None else 0)

    assert isinstance(answer, Rejected if known_since <= NOW else AllowExecute)
    assert not isinstance(answer, Rejected) or answer.code == "effect_unknown"
    assert isinstance(asked(DONE, restored_at=NOW + 1), ReturnRecordedResult), "a result stays a result"


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


REASONS = ("same_attempt", "call_ended", "time_is_over", "holder_gone", "may_repeat")


@pytest.mark.parametrize("given", list(chain.from_iterable(combinations(REASONS, n) for n in range(6))))
def test_not_done_permits_a_call_if_none_is_running_or_a_second_is_harmless(given: Any) -> None:
    sure = [{"may_repeat"}, {"same_attempt", "call_ended"}]
    sure += [{"time_is_over", "same_attempt"}, {"time_is_over", "holder_gone"}]

    is_enough = ledger.may_run_again(**{reason: reason in given for reason in REASONS})

    assert is_enough is any(reasons <= set(given) for reasons in sure)


@pytest.mark.parametrize("status", ["intended", "unknown", "done"])
def test_other_arguments_in_one_lineage_are_a_conflict_unless_it_was_not_done(status: Any) -> None:
    answer = asked(replace(DONE, status=status), args="other arguments")

    assert isinstance(answer, Rejected)
    assert answer.code == "effect_conflict"
    repaired = asked(replace(INTENDED, status="not_done"), args="other arguments")
    assert isinstance(repaired, AllowExecute)


SENT = replace(DONE, args_hash=ledger.named_call("a", "send"))
OTHER_PLACES = {"1:()mail#1": "same", "2:()mail#1": "same", "1:()mail#2": "number", "1:()post#1": "name"}


@pytest.mark.parametrize("lineage", ["t", "another"])
@pytest.mark.parametrize("step", OTHER_PLACES)
@pytest.mark.parametrize("function", ["send", "post", ""])
def test_another_function_is_a_conflict_where_it_cannot_be_the_same_one_renamed(
    function: str, step: str, lineage: str
) -> None:
    others = {"number", "name"} if lineage == "t" else {"name"}
    is_another = function == "post" and OTHER_PLACES[step] in others

    answer = asked(
        SENT, lineage=lineage, step=step, args=ledger.named_call("a", function) if function else "a"
    )

    assert isinstance(answer, Rejected if is_another else ReturnRecordedResult)


def test_a_row_of_an_older_release_may_be_of_any_function() -> None:
    same = asked(DONE, step="1:()post#1", args=ledger.named_call("a", "post"))
    assert isinstance(same, ReturnRecordedResult)
    assert isinstance(asked(DONE, args=ledger.named_call("b", "send")), Rejected)


def test_a_row_without_a_result_or_a_time_is_read_as_it_is() -> None:
    assert asked(replace(INTENDED, status="done")) == ReturnRecordedResult("", "")
    timeless = replace(INTENDED, not_after=None)
    assert asked(timeless, now=MARGIN - 1) == WaitOtherWorker(MARGIN)
    assert isinstance(asked(timeless, now=MARGIN), Rejected)
