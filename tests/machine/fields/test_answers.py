"""What is written when an answer to a wait comes: early, in time or late."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Closing, Decision
from endwell.machine.wait_settlement import Answered, record_answer
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.message import Message, Report, packed_report
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.model.wait import WaitStatus
from tests.machine.fields.waits import (
    ANSWER,
    GO,
    RESUMED,
    SIGNAL,
    SUSPENDED,
    applied,
    card,
    message,
    record_of,
)
from tests.machine.stages import (
    LIMITS,
    NOW,
    call,
    give,
    offer,
    running_task,
    seeing,
    succeeded_task,
    suspended_task,
    task_waiting_for,
    to,
    tool,
)


def test_answers_that_came_early_are_applied_at_once_each_to_one_wait() -> None:
    second = replace(ANSWER, id="y")
    signals = (SIGNAL, replace(SIGNAL, id="z", correlation_id="t.go.z", card_id="t.a.signal~z"))
    calls = (tool("w1"), GO, call("signal", "go2", name="go"))
    command = to(c.Suspend, calls=calls)

    decision = decide(running_task(), command, NOW, LIMITS, seeing(ANSWER, second, *signals))

    assert decision.facts[1:] == (applied("w1", None), applied("go", None), applied("go2", None), RESUMED)
    assert decision.closed == (
        Closing("x", "consumed"),
        Closing("x", "consumed"),
        Closing("z", "consumed"),
    )
    assert decision.cards[1:] == (
        record_of("w1", status="success", ref="t.a.w1~x"),
        record_of("go", status="success", ref="t.a.signal~x"),
        record_of("go2", status="success", ref="t.a.signal~z"),
    )
    other = decide(running_task(), to(c.Suspend, calls=(tool("w2"),)), NOW, LIMITS, seeing(ANSWER, SIGNAL))
    assert (len(other.facts), other.closed) == (1, ())


# answers


def test_an_answer_is_kept_applied_and_recorded_in_one_commit() -> None:
    first = offer(SUSPENDED, c.Answer, content=b"[1]", content_hash="r", status="failed")

    arrived = replace(ANSWER, payload=packed_report(Report("failed", hash="r")), status="consumed")
    assert first == Decision(
        facts=(applied("w1", NOW + 90 * SECOND),),
        cards=(
            card("t.a.w1~x", "tool.result", b"[1]", "r"),
            record_of("w1", status="failed", ref="t.a.w1~x"),
        ),
        messages=(arrived,),
    )
    last = offer(give(SUSPENDED, to(c.Answer)), c.Answer, tool_call_id="t.s.w2")
    assert last.facts == (applied("w2", None), RESUMED)


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        (running_task(), {}),
        (succeeded_task(), {"turn_id": None, "status": "consumed", "watchdog_error": "late"}),
        (give(SUSPENDED, to(c.Answer)), {"status": "consumed", "watchdog_error": "late"}),
    ],
)
def test_an_answer_that_is_early_or_late_is_kept(task: Task, changes: dict[str, Any]) -> None:
    assert offer(task, c.Answer) == Decision(
        cards=(card("t.a.w1~x", "tool.result", b"1", "r"),), messages=(replace(ANSWER, **changes),)
    )


def test_an_answer_to_a_turn_that_no_longer_waits_is_only_kept() -> None:
    awake = replace(SUSPENDED, status="queued")

    assert offer(awake, c.Answer).messages == (ANSWER,)
    assert offer(replace(task_waiting_for(GO), status="queued"), c.Signal).facts == ()


def test_a_signal_finds_the_wait_of_its_name() -> None:
    waiting = task_waiting_for(GO, call("signal", "stop", 90, name="stop"))

    assert offer(waiting, c.Signal, content=b"[1]") == Decision(
        facts=(applied("go", NOW + 90 * SECOND),),
        cards=(
            card("t.a.signal~x", "signal", b"[1]", "r"),
            record_of("go", status="success", ref="t.a.signal~x"),
        ),
        messages=(replace(SIGNAL, status="consumed"),),
    )
    unheard = offer(waiting, c.Signal, name="other")
    assert (unheard.facts, unheard.messages[0].status) == ((), "pending")


# messages


def delivered(task: Task, *messages: Message, wanted: str = "x") -> Decision:
    command = to(c.Deliver, task, message_id=wanted)
    return decide(task, command, NOW, LIMITS, seeing(*messages))


def test_a_message_is_consumed_by_the_wait_that_it_answers() -> None:
    error = {"code": "e", "message": "m"}
    failed = replace(ANSWER, payload=packed_report(Report("failed", error)))

    assert delivered(SUSPENDED, replace(ANSWER, id="y"), failed) == Decision(
        facts=(applied("w1", NOW + 90 * SECOND),),
        cards=(record_of("w1", status="failed", error=error, ref="t.a.w1~x"),),
        closed=(Closing("x", "consumed"),),
    )


@pytest.mark.parametrize(
    ("kind", "wait", "is_answered"),
    [
        ("tool_result", tool("w1"), True),
        ("tool_result", call("call", "w1"), True),
        ("tool_result", call("timer", "w1"), False),
        ("tool_result", call("signal", "w1"), False),
        ("child", tool("w1"), True),
        ("child", call("call", "w1"), True),
        ("child", call("approval", "w1"), False),
        ("timeout", tool("w1"), True),
        ("timeout", call("call", "w1"), True),
        ("timeout", call("signal", "w1"), True),
        ("timeout", call("approval", "w1"), False),
        ("signal", call("signal", "w1", name="go"), True),
        ("signal", call("signal", "w1", name="stop"), False),
        ("signal", tool("w1", name="go"), False),
        ("approval", call("approval", "w1"), False),
        ("nudge", tool("w1"), False),
        ("stop", tool("w1"), False),
    ],
)
def test_which_message_answers_which_wait(kind: Any, wait: c.Call, is_answered: bool) -> None:
    sent = message(kind, "t.s.w1", Report(name="go"))

    assert bool(delivered(task_waiting_for(wait), sent).facts) is is_answered


def test_a_message_without_a_wait_stays_pending_or_is_closed_as_late() -> None:
    answered = give(SUSPENDED, to(c.Answer))

    assert delivered(SUSPENDED, replace(ANSWER, correlation_id="t.s.other")) == Decision()
    assert delivered(running_task(), ANSWER) == Decision()
    assert delivered(replace(SUSPENDED, status="queued"), ANSWER) == Decision()
    assert delivered(SUSPENDED, ANSWER, wanted="other") == Decision()
    assert delivered(answered, replace(ANSWER, correlation_id="t.s.other")) == Decision()
    assert delivered(answered, ANSWER) == Decision(closed=(Closing("x", "consumed", "late"),))


def test_a_message_to_an_ended_task_is_skipped_and_the_log_says_so() -> None:
    skipped = f.InboxSkipped(message_id="x", message_type="tool_result", watchdog_error="task_ended")

    assert delivered(succeeded_task(), ANSWER) == Decision(
        facts=(skipped,), closed=(Closing("x", "skipped", "task_ended"),)
    )
    command = to(c.SkipMessage, message_id="x", why="no agent")
    assert decide(running_task(), command, NOW, LIMITS, seeing(replace(ANSWER, id="y"), ANSWER)) == Decision(
        facts=(replace(skipped, watchdog_error="no agent"),), closed=(Closing("x", "skipped", "no agent"),)
    )
    assert decide(running_task(), command, NOW, LIMITS) == Decision()


@pytest.mark.parametrize(
    ("status", "wait_status"),
    [("success", "applied"), ("failed", "applied"), ("timeout", "expired"), ("expired", "expired")],
)
def test_a_record_says_how_the_wait_was_answered(status: str, wait_status: WaitStatus) -> None:
    found = record_answer(suspended_task(), "t.s.w1", NOW, status=status, by=["ada"], ref=None)

    assert found == Answered(record_of("w1", status=status, by=["ada"]), wait_status)
