"""What is written when an agent goes round in circles.

These tests pin every field, so that mutants are noticed: an intended change of a field changes them too.
"""

from __future__ import annotations

import hashlib
import json

import pytest
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Closing, Decision, Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.card import Card
from endwell.model.inside import Inside, packed_inside
from endwell.model.message import Message, Report, packed_report
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.policy.limits import Limits
from tests.machine.stages import NOW, running_task, to

LIMITS = Limits(repeat_limit=3, stall_after=60 * SECOND)
DUE = NOW + 300 * SECOND
TASK = replace(
    running_task(agent_key="k", channel="side"), inside=packed_inside(Inside(doing=(("x", DUE + 5),)))
)
NUDGED = replace(TASK, inside=packed_inside(Inside(nudges=1)))


def said(task: Task, command: c.TaskCommand) -> Decision:
    return decide(task, command, NOW, LIMITS)


def test_a_sign_of_life_keeps_its_note() -> None:
    assert said(TASK, to(c.Progress, note="half of it")) == Decision(
        facts=(f.TaskHeartbeat(progress_by=DUE + 5, note="half of it"),)
    )
    assert said(TASK, to(c.Repeat, count=2)) == Decision(facts=(f.TaskHeartbeat(progress_by=DUE + 5),))


@pytest.mark.parametrize(
    ("command", "about"),
    [
        (to(c.Repeat, about="look()", count=3), "look(), 3 times in a row"),
        (to(c.Progress, without_news=61 * SECOND), "nothing new for 61 s"),
    ],
)
def test_a_nudge_is_a_fact_a_card_and_a_message(command: c.TaskCommand, about: str) -> None:
    decision = said(TASK, command)

    text = f"You seem to go round in circles: {about}. Do something else, ask for help, or give up."
    (card,), (message,) = decision.cards, decision.messages
    digest = hashlib.sha256(card.content).hexdigest()
    assert card == Card("default", "t.nudge1", "t", "nudge", card.content, digest, NOW)
    assert json.loads(card.content) == {"about": about, "message": text}
    assert list(json.loads(card.content)) == ["about", "message"]
    assert message == Message(
        namespace="default",
        id="t.nudge1",
        agent="coder",
        agent_key="k",
        message_type="nudge",
        correlation_id="t.nudge1",
        channel="side",
        task_id="t",
        turn_id="t.t1",
        turn_epoch=1,
        card_id="t.nudge1",
        payload=packed_report(Report("nudge", {"code": "no_progress", "message": text})),
        status="pending",
        created_at=NOW,
    )
    nudged = f.TaskNudged(about=about, message_id="t.nudge1", nudges=1, progress_by=DUE + 5, card_hash=digest)
    assert decision == Decision(facts=(nudged,), cards=(card,), messages=(message,))


@pytest.mark.parametrize(
    ("command", "about"),
    [
        (to(c.Repeat, about="look()", count=6), "look(), 6 times in a row"),
        (to(c.Progress, without_news=120 * SECOND), "nothing new for 120 s"),
    ],
)
def test_an_agent_that_keeps_repeating_after_a_nudge_is_stopped(command: c.TaskCommand, about: str) -> None:
    turn, ended, letter = said(NUDGED, command).facts

    assert turn == f.TurnEnded(turn_id="t.t1", outcome="failed", epoch=1, error="no_progress")
    assert isinstance(ended, f.FailedEnding)
    assert ended.reason == "no_progress"
    assert ended.error is not None
    assert (ended.error.code, ended.error.message, ended.error.retryable) == (
        "no_progress",
        f"the agent went round in circles: {about}",
        False,
    )
    assert letter.type == "task.dlq"


def test_only_nudges_are_consumed_by_reading_them() -> None:
    nudge = said(TASK, to(c.Repeat, count=3)).messages[0]
    others = (replace(nudge, id="m", message_type="signal"), nudge)

    assert decide(NUDGED, to(c.HearNudges), NOW, LIMITS, Evidence(messages=others)) == Decision(
        closed=(Closing("t.nudge1", "consumed"),)
    )
