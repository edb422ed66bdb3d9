"""Parent and child: a dead child wakes its parent, an ended parent settles its children."""

from __future__ import annotations

from typing import Any

import pytest

from endwell import errors as e
from endwell.machine.decide import decide
from endwell.machine.decision import Closing
from endwell.model import commands as c
from endwell.model.inside import lineage_of
from endwell.model.message import Message, report_of
from endwell.model.moments import SECOND
from endwell.model.task import Task
from tests.machine.stages import (
    BAD_INPUT,
    LIMITS,
    NOW,
    call,
    clock_fires,
    dead_letter,
    deliver,
    give,
    offer,
    queued_task,
    running_task,
    seeing,
    submit,
    succeeded_task,
    task_waiting_for,
    to,
    tool,
)

CALL = call("call", "child", 600, name="reviewer", is_child=True)
OF_PARENT: dict[str, Any] = {
    "task_id": "child",
    "parent_id": "t",
    "parent_agent": "coder",
    "parent_call": CALL.tool_call_id,
    "depth": 1,
}


def news_of(child: Task, kind: type[c.TaskCommand], now: int = NOW, **options: Any) -> list[Message]:
    return list(decide(child, to(kind, child, **options), now, LIMITS).messages)


@pytest.mark.parametrize(
    ("kind", "options", "status"),
    [
        (c.Finish, {}, "success"),
        (c.FailTurn, {"error": BAD_INPUT}, "failed"),
        (c.Cancel, {}, "canceled"),
    ],
)
def test_any_end_of_a_child_resumes_its_parent(
    kind: type[c.TaskCommand], options: dict[str, Any], status: str
) -> None:
    child, parent = running_task(**OF_PARENT), task_waiting_for(CALL)
    (news,) = news_of(child, kind, **options)
    assert (news.message_type, news.task_id, news.correlation_id) == ("child", "t", CALL.tool_call_id)
    assert (report_of(news).status, news.card_id) == (status, "child.out")

    woken = give(parent, deliver(news), seen=seeing(news))

    assert (woken.status, woken.redelivery) == ("queued", "resume")


def test_a_tool_that_is_carried_out_by_a_task_answers_like_a_child() -> None:
    call_of_tool = tool("child", 600, is_child=True)
    (news,) = news_of(running_task(**OF_PARENT), c.Finish)

    assert give(task_waiting_for(call_of_tool), deliver(news), seen=seeing(news)).status == "queued"


def test_an_unclaimed_child_resumes_its_parent_when_its_clock_ends_it() -> None:
    child = queued_task(**OF_PARENT)

    (news,) = news_of(child, c.ClockFired, child.ends_by)

    assert report_of(news).status == "timeout"


def test_a_child_that_ends_before_its_parent_waits_is_found_when_it_does() -> None:
    (news,) = news_of(running_task(**OF_PARENT), c.Finish)

    answer = decide(running_task(), to(c.Suspend, calls=(CALL,)), NOW, LIMITS, seeing(news))

    assert answer.facts[-1].type == "task.resumed"
    assert answer.closed == (Closing(news.id, "consumed"),)


def test_a_child_that_ends_after_its_parent_is_skipped_visibly() -> None:
    (news,) = news_of(running_task(**OF_PARENT), c.Finish)

    answer = decide(succeeded_task(), deliver(news), NOW, LIMITS, seeing(news))

    assert answer.closed == (Closing(news.id, "skipped", "task_ended"),)


@pytest.mark.parametrize("kind", [c.Cancel, c.ClockFired])
def test_a_parent_that_ends_has_its_children_stopped(kind: type[c.TaskCommand]) -> None:
    parent = task_waiting_for(CALL)

    (stop,) = news_of(parent, kind, parent.ends_by)

    assert (stop.message_type, stop.task_id, stop.status) == ("stop", "t", "pending")


def test_a_task_without_children_sends_no_stop() -> None:
    assert news_of(running_task(), c.Finish) == []


def test_a_stop_is_not_skipped_before_the_children_are_settled() -> None:
    (stop,) = news_of(task_waiting_for(CALL), c.Cancel)

    answer = decide(succeeded_task(), deliver(stop), NOW, LIMITS, seeing(stop))

    assert answer.closed == ()


def test_a_parent_that_is_tried_again_keeps_its_living_child() -> None:
    parent = task_waiting_for(CALL)
    capped = clock_fires(clock_fires(parent))

    assert capped.reason == "suspend_timeout"
    assert news_of(capped, c.Cancel, NOW + 3600 * SECOND)[0].message_type == "stop"


def test_an_ended_parents_child_is_cancelled_or_left_with_an_owner() -> None:
    child = queued_task(**OF_PARENT)
    left = queued_task(**OF_PARENT, on_parent_end="leave", owner="ada")

    cancelled = give(child, to(c.Disown, child, parent_id="t"))
    orphan = give(left, to(c.Disown, left, parent_id="t"))

    assert (cancelled.status, cancelled.reason) == ("cancelled", "parent_ended")
    assert (orphan.status, orphan.owner) == ("queued", "ada")
    nobodys = queued_task(**OF_PARENT, on_parent_end="leave")
    assert give(nobodys, to(c.Disown, nobodys, parent_id="t")).owner == LIMITS.owner


def test_a_task_is_not_disowned_by_another_parent() -> None:
    assert offer(queued_task(**OF_PARENT), c.Disown, parent_id="stranger").facts == ()


def refusal_of(**options: Any) -> e.Refused | e.NotFound | None:
    return decide(None, submit(**options), NOW, LIMITS).refusal


def test_a_chain_of_calls_is_twenty_deep_at_most() -> None:
    refusal = refusal_of(depth=21)

    assert isinstance(refusal, e.BadInput)
    assert refusal.code == "calls_too_deep"
    assert refusal_of(depth=20) is None


def test_a_call_to_a_key_that_an_ancestor_holds_is_refused_at_once() -> None:
    refusal = refusal_of(agent="coder", agent_key="issue-42", held_keys=("coder/issue-42",))

    assert isinstance(refusal, e.BadInput)
    assert refusal.code == "key_held_by_ancestor"
    assert refusal_of(agent="coder", agent_key="issue-43", held_keys=("coder/issue-42",)) is None


def test_a_replay_of_a_replay_keeps_the_first_lineage() -> None:
    first = offer(dead_letter(), c.Replay).spawn
    assert first is not None
    again = give(give(give(None, first), to(c.Claim)), to(c.FailTurn, error=BAD_INPUT))

    second = decide(again, to(c.Replay, again, new_task_id="third"), NOW, LIMITS).spawn

    assert second is not None
    assert second.lineage == lineage_of(again) == "t"
