"""What an attempt records while it works, and who believes it later."""

from __future__ import annotations

import json

import pytest

from endwell.model import commands as c
from endwell.model.card import draft_id, record_id
from endwell.model.inside import inside_of
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task
from tests.machine.stages import LAPSED, LIMITS, NOW, clock_fires, fold, give, offer, running_task, to

REFUSED_OUTPUT = ErrorInfo(code="bad_result", message="not what the agent promised")
LONG = 3600 * SECOND


def worked(task: Task) -> Task:
    """The task after one recorded step."""
    return give(task, to(c.RecordStep), NOW)


def test_a_recorded_step_is_one_fact_and_a_card_that_its_identity_finds() -> None:
    answer = offer(running_task(), c.RecordStep, step="1:()plan#1")

    assert [fact.type for fact in answer.facts] == ["step.recorded"]
    assert [(card.id, card.kind) for card in answer.cards] == [(record_id("t", "1:()plan#1"), "step.result")]


@pytest.mark.covers("S3.28")
@pytest.mark.parametrize(
    ("result_type", "content", "kept"),
    [("retryable_failure", None, []), ("permanent_failure", b"{}", ["step.failure"])],
)
def test_only_a_permanent_failure_is_kept(result_type: str, content: bytes | None, kept: list[str]) -> None:
    answer = offer(running_task(), c.RecordStep, result_type=result_type, content=content)

    assert [getattr(fact, "result_type", None) for fact in answer.facts] == [result_type]
    assert [card.kind for card in answer.cards] == kept


def test_recorded_work_survives_a_reclaim_a_suspension_and_a_retry() -> None:
    task = worked(running_task())
    reclaimed = give(task, to(c.Reclaim), seen=LAPSED)
    suspended = give(task, to(c.Suspend))
    retried = give(task, to(c.FailTurn))

    for later in (reclaimed, suspended, retried):
        assert inside_of(later).run == 1
        assert inside_of(later).steps >= 1


def test_a_refused_output_starts_a_new_run_in_which_no_step_is_believed() -> None:
    task = give(worked(running_task()), to(c.FailTurn, error=REFUSED_OUTPUT))

    assert (inside_of(task).run, inside_of(task).steps) == (2, 0)
    assert (task.status, task.retry_count) == ("queued", 1)


@pytest.mark.covers("S3.20")
def test_a_step_that_may_outlast_the_reaper_is_waited_for_until_its_own_timeout() -> None:
    task = give(running_task(), to(c.StartStep, timeout=LONG))

    assert task.progress_by == NOW + LONG + LIMITS.step_grace


@pytest.mark.parametrize("beside", [c.Progress, c.RecordStep, c.KeepDraft])
def test_a_report_beside_a_long_step_does_not_shorten_its_time(beside: type[c.TaskCommand]) -> None:
    task = give(running_task(), to(c.StartStep, timeout=LONG))

    assert give(task, to(beside), NOW + SECOND).progress_by == task.progress_by


def test_once_a_long_step_is_recorded_the_reaper_is_as_strict_as_before() -> None:
    task = give(running_task(), to(c.StartStep, step="1:()long#1", timeout=LONG))

    recorded = give(task, to(c.RecordStep, step="1:()long#1"), NOW + SECOND)

    assert recorded.progress_by == NOW + SECOND + (LIMITS.active_reap or 0)


def test_the_next_attempt_is_not_given_the_time_of_a_step_that_it_did_not_begin() -> None:
    task = give(running_task(), to(c.StartStep, timeout=LONG))
    lost = give(task, to(c.Reclaim), seen=LAPSED)

    again = give(lost, to(c.Claim, attempt_id="a2"))

    assert again.progress_by == NOW + (LIMITS.active_reap or 0)


# drafts


def test_the_last_draft_is_salvaged_when_the_task_ends_without_a_result() -> None:
    task = give(give(running_task(), to(c.KeepDraft)), to(c.KeepDraft))
    last = draft_id("t", task.version)

    answer = offer(task, c.Cancel)

    assert json.loads(answer.cards[0].content)["kind"] == "partial_deliverable"
    assert json.loads(answer.cards[0].content)["draft_card"] == last


def test_a_draft_survives_a_retry_and_a_reaper_salvages_it() -> None:
    task = give(running_task(), to(c.KeepDraft))
    retried = give(give(task, to(c.FailTurn)), to(c.Claim, attempt_id="a2"), NOW + 60 * SECOND)

    ended = offer(retried, c.FailTurn, NOW + 60 * SECOND, attempt_id="a2", error=BAD)

    assert json.loads(ended.cards[0].content)["draft_card"] == inside_of(task).draft
    assert clock_fires(task).status == "queued"


BAD = ErrorInfo(code="bad_input", retryable=False)


def test_without_a_draft_a_failure_report_is_written() -> None:
    answer = offer(running_task(), c.FailTurn, error=BAD)

    assert json.loads(answer.cards[0].content)["kind"] == "failure_report"
    assert fold(running_task(), answer, NOW).deliverable_card == answer.cards[0].id
