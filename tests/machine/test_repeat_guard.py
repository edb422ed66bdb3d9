"""What the machine makes of an agent that goes round in circles, and of what a person moves by hand."""

from __future__ import annotations

import json

import pytest

from endwell import errors as e
from endwell.machine.decide import decide
from endwell.machine.decision import Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.inside import inside_of
from endwell.model.moments import SECOND
from endwell.model.task import Task
from tests.machine.stages import (
    LAPSED,
    LIMITS,
    NOW,
    give,
    offer,
    queued_task,
    running_task,
    suspended_task,
    to,
)


def repeated(task: Task, count: int) -> Task:
    return give(task, to(c.Repeat, count=count))


def test_the_nudge_is_a_message_with_its_own_card() -> None:
    answer = offer(running_task(), c.Repeat, about="the call of search", count=10)

    (message,), (card,) = answer.messages, answer.cards
    assert (message.message_type, message.status, message.card_id) == ("nudge", "pending", card.id)
    assert "the call of search, 10 times in a row" in json.loads(card.content)["message"]
    assert [fact.type for fact in answer.facts] == ["task.nudged"]


def test_an_agent_is_nudged_once_and_stopped_at_twice_the_limit() -> None:
    nudged = repeated(running_task(), 10)
    assert inside_of(nudged).nudges == 1
    assert inside_of(repeated(nudged, 19)).nudges == 1

    stopped = repeated(nudged, 20)

    assert (stopped.status, stopped.reason, stopped.dead_letter) == ("failed", "no_progress", "open")
    assert stopped.retry_count == 0, "trying again would be another circle"


def test_a_row_that_was_never_nudged_is_not_stopped() -> None:
    assert repeated(running_task(), 999).status == "running"


def test_any_sign_of_life_moves_the_progress_deadline() -> None:
    for command in (to(c.Progress), to(c.Repeat, count=3), to(c.Repeat, count=10)):
        later = give(running_task(), command, NOW + 100 * SECOND)
        assert later.progress_by == NOW + 400 * SECOND


def test_reading_the_nudges_consumes_them() -> None:
    task = running_task()
    nudge = offer(task, c.Repeat, count=10)
    seen = Evidence(messages=nudge.messages)
    heard = decide(repeated(task, 10), to(c.HearNudges), NOW, LIMITS, seen)

    assert [(closing.message_id, closing.status) for closing in heard.closed] == [
        (nudge.messages[0].id, "consumed")
    ]


def test_a_waiting_turn_cannot_report_repeats() -> None:
    answer = offer(suspended_task(), c.Repeat, count=99)

    assert isinstance(answer.refusal, e.StaleAttempt)


@pytest.mark.parametrize("stage", [queued_task, running_task, suspended_task])
def test_a_task_is_assigned_in_any_live_status(stage: type[Task]) -> None:
    task = stage()  # type: ignore[call-arg]

    after = give(task, to(c.Assign, owner="ada"))

    assert (after.owner, after.status, after.clock_at) == ("ada", task.status, task.clock_at)


def test_only_a_blocked_task_is_unblocked() -> None:
    assert isinstance(offer(queued_task(), c.Unblock).refusal, e.WrongStatus)


def test_a_message_is_skipped_once() -> None:
    task = running_task()
    (message,) = offer(task, c.Answer).messages
    skip = to(c.SkipMessage, message_id=message.id, why="missing_channel")

    first = decide(task, skip, NOW, LIMITS, Evidence(messages=(message,)))
    second = decide(task, skip, NOW, LIMITS, Evidence())

    assert [type(fact) for fact in first.facts] == [f.InboxSkipped]
    assert (second.facts, second.closed) == ((), ())


def chained(chain: int) -> Task:
    return queued_task(parent_id="p", on_parent_end="leave", chain=chain)


@pytest.mark.covers("T13")
def test_the_guard_counts_the_deliveries_of_the_chain_that_led_to_a_task() -> None:
    early, late = give(chained(7), to(c.Claim)), give(chained(8), to(c.Claim))

    assert (early.guard_at, late.guard_at) == (None, None)
    again = give(give(late, to(c.HandBack)), to(c.Claim))
    assert again.guard_at is None, "a hand-back costs nothing, in a chain either"
    nine, ten = (give(give(task, to(c.Reclaim), seen=LAPSED), to(c.Claim)) for task in (early, late))
    assert (nine.guard_at, ten.guard_at, ten.clock_rule) == (None, NOW, "runaway_guard")


@pytest.mark.covers("T13")
def test_a_task_whose_first_delivery_would_be_the_tenth_is_never_delivered() -> None:
    task = chained(9)

    assert (task.clock_rule, task.clock_at) == ("runaway_guard", NOW)
    refused = offer(task, c.Claim)
    assert isinstance(refused.refusal, e.WrongStatus)
    ended = give(task, to(c.ClockFired))
    assert (ended.status, ended.reason, ended.dispatch_count) == ("failed", "runaway_guard", 0)
