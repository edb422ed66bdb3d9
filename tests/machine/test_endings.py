"""How turns and tasks end: every field of the last events, of the report, and of messages to the family."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from endwell.machine.decision import NO_EVIDENCE, Decision
from endwell.machine.endings import TurnFailure, cancel, end, end_failed_turn, fingerprint, finish
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.card import Card
from endwell.model.inside import Family, Inside, packed_family, packed_inside
from endwell.model.message import Message, Report, packed_report
from endwell.model.moments import SECOND
from endwell.model.task import ErrorInfo, Task
from endwell.policy.limits import Limits
from tests.machine.stages import NOW, to

BROKEN = ErrorInfo(code="exception", type="ValueError", message="it broke 7 times\nthere")
FINAL = ErrorInfo(code="bad_input", message="no such field", retryable=False)
DAY = 86_400 * SECOND
LIMITS = Limits()
QUIET = Task(
    "n", "t", "coder", channel="side", ends_by=NOW + DAY, retry_count=1, dispatch_count=2, crash_count=3
)
TURN = replace(QUIET, status="running", turn_id="t.t2", attempt_id="a1", session_id="s1", epoch=4)
CHILD = replace(TURN, parent_id="p", family=packed_family(Family(parent_agent="boss", parent_call="p.s.1")))
PARENT = replace(TURN, inside=packed_inside(Inside(children=1)))
BUSY = replace(TURN, inside=packed_inside(Inside(intents=("mail", "pay"), draft="t.draft3", steps=2)))


def doubts(reason: str) -> tuple[f.Fact, ...]:
    return tuple(f.EffectDoubted(key=key, reason=reason, is_left_behind=True) for key in ("mail", "pay"))


def report_in(decision: Decision) -> dict[str, Any]:
    """The one card's content; its hash must be that of the content."""
    (card,) = decision.cards
    assert card.hash == hashlib.sha256(card.content).hexdigest()
    assert card == Card("n", card.id, "t", "task.deliverable", card.content, card.hash, NOW)
    report: dict[str, Any] = json.loads(card.content)
    assert list(report) == sorted(report), "the same report is the same content"
    return report


def fact_of(decision: Decision, kind: type[f.Fact]) -> Any:
    (found,) = [fact for fact in decision.facts if type(fact) is kind]
    return found


def message(kind: Any, **options: Any) -> Message:
    same: dict[str, Any] = {"namespace": "n", "id": f"t~{kind}", "agent_key": None, "message_type": kind}
    same |= {"channel": "side", "turn_id": None, "turn_epoch": None, "card_id": None, "payload": None}
    return Message(**same, **options, status="pending", created_at=NOW)


def told_parent(status: str, error: dict[str, str] | None) -> Message:
    told = message("child", agent="boss", correlation_id="p.s.1", task_id="p")
    return replace(told, card_id="t.out", payload=packed_report(Report(status, error)))


STOP = message("stop", agent="coder", correlation_id="t", task_id="t")


# a good end


def test_a_success_is_the_turns_end_the_tasks_end_and_the_result() -> None:
    command = to(c.Finish, result=b"[1]", result_hash="r")

    assert finish(TURN, command, NOW, LIMITS, NO_EVIDENCE) == Decision(
        facts=(
            f.TurnEnded(turn_id="t.t2", outcome="success", epoch=4),
            f.SucceededEnding(deliverable_card="t.out", deliverable_hash="r"),
        ),
        cards=(Card("n", "t.out", "t", "task.deliverable", b"[1]", "r", NOW),),
    )
    assert finish(BUSY, command, NOW, LIMITS, NO_EVIDENCE).facts[:2] == doubts("the turn ended")
    assert finish(CHILD, command, NOW, LIMITS, NO_EVIDENCE).messages == (told_parent("success", None),)
    assert finish(PARENT, command, NOW, LIMITS, NO_EVIDENCE).messages == (STOP,)


# a turn that is tried again


def retried(task: Task, error: ErrorInfo = BROKEN, **options: Any) -> Decision:
    failure = TurnFailure(error, **{"fraction": 0.5, **options})
    return end_failed_turn(task, failure, NOW, LIMITS)


def test_a_failed_turn_is_tried_again_and_the_log_says_why() -> None:
    assert retried(TURN) == Decision(
        facts=(
            f.TurnEnded(turn_id="t.t2", outcome="failed", epoch=4, error="exception"),
            f.TaskRetryScheduled(retry_count=2, run_at=NOW + SECOND, reason="exception", error=BROKEN),
        )
    )
    assert retried(BUSY).facts[:2] == doubts("exception")


@pytest.mark.parametrize(
    ("options", "delay"),
    [({"fraction": 0.0}, 0.8), ({"fraction": 1.0}, 1.2), ({"asked_after": 7}, 7e-6), ({"asked_after": 0}, 0)],
)
def test_a_retry_comes_when_policy_or_the_agent_says(options: dict[str, Any], delay: float) -> None:
    assert fact_of(retried(TURN, **options), f.TaskRetryScheduled).run_at == NOW + int(delay * SECOND)


def test_a_task_may_have_a_retry_policy_of_its_own() -> None:
    own = replace(TURN, retry_policy='{"max_retries":1}')

    assert fact_of(retried(own), f.FailedEnding).reason == "retries_exhausted"


def test_only_a_refused_output_is_tried_in_a_run_of_its_own() -> None:
    busy = replace(TURN, inside=packed_inside(Inside(run=2)))
    refused = retried(busy, replace(BROKEN, code="bad_result"))

    assert fact_of(refused, f.TaskRetryScheduled).run == 3
    assert fact_of(retried(busy), f.TaskRetryScheduled).run is None


def test_a_turn_that_is_ended_by_force_leaves_a_deliverable_of_its_own() -> None:
    decision = retried(TURN, forced=True, ends_as="timeout")

    assert decision.facts[:2] == (
        f.TaskReaped(reason="exception", epoch=5, attempt_id="a1", session_id="s1"),
        f.TurnEnded(
            turn_id="t.t2",
            outcome="timeout",
            epoch=5,
            error="exception",
            deliverable_card="t.t2.out",
            deliverable_hash=decision.cards[0].hash,
        ),
    )
    assert [card.id for card in decision.cards] == ["t.t2.out"]
    assert report_in(decision) == {
        "kind": "fallback_deliverable",
        "schema_version": 1,
        "status": "timeout",
        "reason": "exception",
        "error": msgspec.to_builtins(BROKEN),
        "agent": "coder",
        "retry_count": 1,
        "dispatch_count": 2,
        "crash_count": 3,
        "message": "no deliverable came of turn t.t2: exception",
        "fields": {"summary": BROKEN.message, "output": None, "reason": "exception"},
        "diagnostics": {
            "source": "pmo.watchdog",
            "agent_turn_id": "t.t2",
            "step_count": 0,
            "partial": False,
            "terminal_status": "timeout",
        },
    }
    salvaged = report_in(retried(BUSY, forced=True))
    assert (salvaged["kind"], salvaged["draft_card"]) == ("partial_deliverable", "t.draft3")
    assert salvaged["fields"]["output"] == "t.draft3"
    assert (salvaged["diagnostics"]["partial"], salvaged["diagnostics"]["step_count"]) == (True, 2)


def test_a_task_between_two_turns_leaves_nothing_when_one_fails_by_force() -> None:
    decision = retried(QUIET, forced=True)

    assert [fact.type for fact in decision.facts] == ["task.retry_scheduled"]
    assert decision.cards == ()


@pytest.mark.parametrize(("owner", "holder"), [("bob", "bob"), (None, "operator")])
def test_an_untaken_task_is_held_for_its_owner(owner: str | None, holder: str) -> None:
    last = replace(TURN, retry_count=3, owner=owner)
    decision = retried(last, forced=True, ends_as="timeout", escalates=True)

    blocked = f.TaskBlocked(
        reason="exception",
        owner=holder,
        remind_at=NOW + DAY,
        error=BROKEN,
        retry_count=4,
        is_unaccepted=True,
    )
    assert decision.facts == (
        f.TaskReaped(reason="exception", epoch=5, attempt_id="a1", session_id="s1"),
        f.TurnEnded(
            turn_id="t.t2",
            outcome="timeout",
            epoch=5,
            error="exception",
            deliverable_card="t.t2.out",
            deliverable_hash=decision.cards[0].hash,
        ),
        blocked,
    )
    assert [card.id for card in decision.cards] == ["t.t2.out"]
    assert fact_of(retried(TURN, escalates=True), f.TaskRetryScheduled).retry_count == 2


# a bad end


@pytest.mark.parametrize(
    ("code", "ends_as", "kind", "is_letter"),
    [
        ("bad_input", "failed", f.FailedEnding, True),
        ("bad_input", "timeout", f.TimedOutEnding, True),
        ("approval_rejected", "failed", f.FailedEnding, False),
        ("approval_expired", "failed", f.TimedOutEnding, False),
    ],
)
def test_a_failure_that_is_final_ends_the_task(
    code: str, ends_as: Any, kind: type[f.Ending], is_letter: bool
) -> None:
    error = replace(FINAL, code=code)
    decision = retried(TURN, error, ends_as=ends_as)

    ending = fact_of(decision, kind)
    assert ending == kind(
        reason=code,
        deliverable_card="t.out",
        deliverable_hash=decision.cards[0].hash,
        error=error,
        retry_count=2,
    )
    letter = [f.TaskDeadLettered(fingerprint=fingerprint("coder", code, error))] if is_letter else []
    assert [fact for fact in decision.facts if isinstance(fact, f.TaskDeadLettered)] == letter
    turn = fact_of(decision, f.TurnEnded)
    assert (turn.epoch, turn.error) == (4, code)
    report = report_in(decision)
    assert (report["kind"], report["retry_count"]) == ("failure_report", 2)
    assert report_in(retried(TURN, error, forced=True))["kind"] == "fallback_deliverable"


def test_an_end_is_the_turns_end_the_terminal_event_and_the_dead_letter() -> None:
    before = f.ExpiredApproval()
    decision = end(BUSY, NOW, "timeout", "ends_by", before=(before,))

    (card,) = decision.cards
    assert decision.facts == (
        before,
        *doubts("ends_by"),
        f.TaskReaped(reason="ends_by", epoch=5, attempt_id="a1", session_id="s1"),
        f.TurnEnded(turn_id="t.t2", outcome="timeout", epoch=5, error="ends_by"),
        f.TimedOutEnding(
            reason="ends_by",
            deliverable_card="t.out",
            deliverable_hash=card.hash,
            retry_count=1,
            partial=True,
        ),
        f.TaskDeadLettered(fingerprint=fingerprint("coder", "ends_by", None)),
    )
    assert report_in(decision) == {
        "kind": "partial_deliverable",
        "schema_version": 1,
        "status": "timeout",
        "reason": "ends_by",
        "error": None,
        "agent": "coder",
        "retry_count": 1,
        "dispatch_count": 2,
        "crash_count": 3,
        "draft_card": "t.draft3",
    }


def test_the_turn_ends_by_the_error_and_the_task_by_the_reason() -> None:
    decision = end(TURN, NOW, "failed", "why", error=FINAL, retry_count=5)

    turn, ended = fact_of(decision, f.TurnEnded), fact_of(decision, f.FailedEnding)
    assert (turn.error, ended.reason, ended.error, ended.retry_count) == ("bad_input", "why", FINAL, 5)
    assert end(TURN, NOW, "failed", "why", dead_letter=False).facts[-1].type == "task.failed"


def test_a_report_tells_the_last_error_that_is_known() -> None:
    failed_before = replace(QUIET, error=f.encode_error(BROKEN))
    old, new = msgspec.to_builtins(BROKEN), msgspec.to_builtins(FINAL)

    assert report_in(end(failed_before, NOW, "timeout", "ends_by"))["error"] == old
    assert report_in(end(failed_before, NOW, "failed", "bad_input", error=FINAL))["error"] == new
    watched = report_in(end(failed_before, NOW, "timeout", "ends_by", by_watchdog=True))
    assert watched["fields"]["summary"] == BROKEN.message
    plain = report_in(end(QUIET, NOW, "timeout", "ends_by", by_watchdog=True, retry_count=0))
    assert (plain["fields"]["summary"], plain["retry_count"]) == ("ends_by", 0)


def test_a_cancellation_says_who_asked_for_it() -> None:
    decision = cancel(TURN, NOW, "not needed", "ada")

    assert decision.facts == (
        f.TaskReaped(reason="not needed", epoch=5, attempt_id="a1", session_id="s1"),
        f.TurnEnded(turn_id="t.t2", outcome="canceled", epoch=5, error="not needed"),
        f.CancelledEnding(
            reason="not needed",
            deliverable_card="t.out",
            deliverable_hash=decision.cards[0].hash,
            retry_count=1,
            by="ada",
        ),
    )
    report = report_in(decision)
    assert (report["kind"], report["status"], report["reason"]) == (
        "failure_report",
        "cancelled",
        "not needed",
    )
    assert fact_of(cancel(BUSY, NOW, "why", "ada"), f.CancelledEnding).partial
    assert cancel(BUSY, NOW, "why", "ada").facts[:2] == doubts("why")


@pytest.mark.parametrize(
    ("ending", "status", "code", "said"),
    [
        (lambda: end(CHILD, NOW, "failed", "r", error=FINAL), "failed", "bad_input", "no such field"),
        (lambda: end(CHILD, NOW, "timeout", "ends_by"), "timeout", "ends_by", "the task ended: ends_by"),
        (lambda: cancel(CHILD, NOW, "why", "ada"), "canceled", "why", "the task ended: why"),
    ],
)
def test_the_end_of_a_child_is_reported_to_its_call(
    ending: Callable[[], Decision], status: str, code: str, said: str
) -> None:
    assert ending().messages == (told_parent(status, {"code": code, "message": said}),)


def test_a_stop_needs_children_and_a_report_needs_a_call() -> None:
    both = replace(CHILD, inside=PARENT.inside)
    left = replace(TURN, parent_id="p", family=packed_family(Family(on_parent_end="leave")))

    assert [message.message_type for message in cancel(both, NOW, "why", "ada").messages] == ["child", "stop"]
    assert cancel(PARENT, NOW, "why", "ada").messages == (STOP,)
    for task in (left, BUSY, TURN, replace(CHILD, parent_id=None, inside=BUSY.inside)):
        assert cancel(task, NOW, "why", "ada").messages == ()


# what failures have in common


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (("coder", "r", replace(BROKEN, message="it broke 12 times\nelsewhere")), True),
        (("writer", "r", BROKEN), False),
        (("coder", "other", BROKEN), False),
        (("coder", "r", replace(BROKEN, code="other")), False),
        (("coder", "r", replace(BROKEN, type="KeyError")), False),
        (("coder", "r", replace(BROKEN, message="it broke")), False),
        (("coder", "r", None), False),
    ],
)
def test_failures_of_one_kind_have_one_fingerprint(other: tuple[Any, ...], is_same: bool) -> None:
    assert (fingerprint(*other) == fingerprint("coder", "r", BROKEN)) is is_same
    assert len(fingerprint(*other)) == 12
