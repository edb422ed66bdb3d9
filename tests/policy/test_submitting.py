"""From what a caller asks to the command that asks it: every field of it, and every refusal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from endwell.errors import BadInput
from endwell.model import content
from endwell.model.card import child_id
from endwell.model.commands import AgentSpec, Submit
from endwell.model.inside import MAX_DEPTH, Family, packed_family
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.policy.approval import AgentOptions, Guard, packed_options
from endwell.policy.submitting import (
    LONGEST_SECONDS,
    Cause,
    ChildCall,
    Request,
    child_order,
    fill_order,
    microseconds,
    order_for,
    unknown_agent,
)
from endwell.settings import ApprovalSettings as ApprovalSettings
from tests.machine.stages import running_task

SPEC = AgentSpec(name="coder", version="7", retry_policy="{}", deadline=50 * SECOND)
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
CALL = ChildCall(tool_call_id="t.s.1:()call#1", agent_key="k", within=40 * SECOND, on_parent_end="leave")
TEN_YEARS = 10 * 366 * 86_400


def ordered(spec: AgentSpec = SPEC, **request: Any) -> Submit:
    asked = Request(**{"agent": "coder", **request})
    return order_for(asked, spec, namespace="n", owner="ada", approval=ApprovalSettings())


def parent_with(**family: Any) -> Task:
    parent = replace(
        running_task(),
        agent_key="p",
        channel="side",
        fair_key="fair",
        trace="trace",
        priority=3,
        owner="bob",
        family=packed_family(Family(**family)) if family else None,
    )
    assert isinstance(parent, Task)
    return parent


def changed(order: Submit, plain: Submit) -> dict[str, Any]:
    """The fields in which two orders differ."""
    return {name: value for name, value in asdict(order).items() if value != asdict(plain)[name]}


def test_a_submission_names_sender_agent_and_options() -> None:
    order = ordered(agent="coder/k", priority=-9, delay=1.5, deadline=timedelta(seconds=2), channel="side")

    assert order == Submit(
        command_id="",
        namespace="n",
        actor="ada",
        task_id="",
        agent="coder",
        agent_key="k",
        payload=b"",
        payload_hash="",
        channel="side",
        agent_version="7",
        priority=-9,
        retry_policy="{}",
        delay=1_500_000,
        deadline=2 * SECOND,
        owner="ada",
    )


def test_the_agent_fills_in_what_a_submission_leaves_out() -> None:
    order = ordered()

    assert (order.agent_key, order.channel, order.priority, order.delay) == (None, "main", 0, 0)
    assert order.deadline == 50 * SECOND
    assert (order.parent_id, order.on_parent_end, order.chain) == (None, "cancel", 0)


def test_a_caused_task_continues_the_count_of_its_cause_and_outlives_it() -> None:
    cause = Cause.of(replace(parent_with(chain=4), dispatch_count=2))

    assert changed(ordered(cause=cause), ordered()) == {
        "parent_id": "t",
        "on_parent_end": "leave",
        "chain": 6,
        "origin_at": running_task().created_at,
    }


def test_a_submission_carries_the_approval_rule_of_its_agent() -> None:
    guard = Guard(by=("ada", "bob"), within_seconds=1.5, quorum=2)
    spec = replace(SPEC, options=packed_options(AgentOptions(approval=guard)))

    assert changed(ordered(spec), ordered()) == {
        "approval_within": 1_500_000,
        "approval_by": ("ada", "bob"),
        "approval_quorum": 2,
    }


def test_an_order_is_filled_with_payload_key_and_ids() -> None:
    order = ordered()
    made = fill_order(order, SPEC, {"b": 1, "a": 2}, "order-1", "new")

    assert changed(made, order) == {
        "command_id": "new",
        "task_id": "new",
        "payload": b'{"a":2,"b":1}',
        "payload_hash": content.fingerprint(b'{"a":2,"b":1}'),
        "key": "order-1",
    }
    assert fill_order(order, SPEC, 1, None, "new").key is None


def test_a_payload_that_the_agent_does_not_take_is_refused() -> None:
    spec = replace(SPEC, payload_schema=SCHEMA)

    assert fill_order(ordered(), spec, {"n": 1}, None, "new").payload == b'{"n":1}'
    with pytest.raises(BadInput, match="payload"):
        fill_order(ordered(), spec, {"n": "one"}, None, "new")


def test_a_call_becomes_an_order_in_the_name_of_its_parent() -> None:
    parent = parent_with(depth=2, held_keys=("boss/k",), chain=5)

    assert child_order(parent, CALL, SPEC, {"n": 1}, None) == Submit(
        command_id=child_id(CALL.tool_call_id),
        namespace=parent.namespace,
        actor=parent.agent,
        causation_id=parent.turn_id,
        task_id=child_id(CALL.tool_call_id),
        agent="coder",
        agent_key="k",
        payload=b'{"n":1}',
        payload_hash=content.fingerprint(b'{"n":1}'),
        channel="side",
        fair_key="fair",
        agent_version="7",
        trace="trace",
        parent_id="t",
        priority=3,
        retry_policy="{}",
        deadline=40 * SECOND,
        ends_before=parent.ends_by,
        owner="bob",
        parent_agent=parent.agent,
        parent_call=CALL.tool_call_id,
        depth=3,
        held_keys=("boss/k", f"{parent.agent}/p"),
        on_parent_end="leave",
        chain=5,
        origin_at=parent.created_at,
    )


def test_a_call_ends_at_its_own_time_or_the_agents_whichever_is_first() -> None:
    def deadline(agents: int | None) -> int | None:
        return child_order(parent_with(), CALL, replace(SPEC, deadline=agents), 1, None).deadline

    assert [deadline(30 * SECOND), deadline(None), deadline(90 * SECOND)] == [
        30 * SECOND,
        40 * SECOND,
        40 * SECOND,
    ]


def test_a_call_that_a_person_must_agree_to_says_so() -> None:
    order = child_order(parent_with(), CALL, SPEC, 1, Guard(by=("ada",), within_seconds=None))

    assert (order.approval_within, order.approval_by, order.approval_quorum) == (0, ("ada",), 1)


def test_a_parent_without_a_key_holds_none() -> None:
    parent = replace(parent_with(), agent_key=None)

    assert child_order(parent, CALL, SPEC, 1, None).held_keys == ()


def test_calls_go_only_so_deep() -> None:
    assert child_order(parent_with(depth=MAX_DEPTH - 1), CALL, SPEC, 1, None).depth == MAX_DEPTH
    with pytest.raises(BadInput) as refusal:
        child_order(parent_with(depth=MAX_DEPTH), CALL, SPEC, 1, None)
    assert (refusal.value.code, bool(refusal.value.hint)) == ("calls_too_deep", True)


def test_a_key_that_an_ancestor_holds_is_not_waited_for() -> None:
    with pytest.raises(BadInput) as refusal:
        child_order(parent_with(held_keys=("coder/k",)), CALL, SPEC, 1, None)
    assert (refusal.value.code, bool(refusal.value.hint)) == ("key_held_by_ancestor", True)


@pytest.mark.parametrize("priority", [-10, 10, True, 1.0, "1"])
def test_an_impossible_priority_is_refused(priority: Any) -> None:
    assert ordered(priority=9).priority == 9
    with pytest.raises(BadInput, match="from -9 to 9") as refusal:
        ordered(priority=priority)
    assert (refusal.value.code, refusal.value.field, bool(refusal.value.hint)) == (
        "bad_priority",
        "priority",
        True,
    )


@pytest.mark.parametrize("value", [0.4, -1, float("nan"), TEN_YEARS + 1, True, "5", timedelta(days=3661)])
def test_a_time_that_makes_no_sense_is_refused(value: Any) -> None:
    with pytest.raises(BadInput) as refusal:
        microseconds(value, "delay", least=0.5)
    found = refusal.value
    assert (found.code, found.field, bool(found.hint)) == ("bad_delay", "delay", True)


def test_a_time_may_be_as_short_and_as_long_as_it_says() -> None:
    assert microseconds(None, "delay", least=0.5) is None
    assert microseconds(0.5, "delay", least=0.5) == SECOND // 2
    assert microseconds(LONGEST_SECONDS, "delay", least=0.5) == TEN_YEARS * SECOND
    assert ordered(delay=0).delay == 0
    assert ordered(deadline=0.001).deadline == 1000
    with pytest.raises(BadInput, match=r"0\.001"):
        ordered(deadline=0.0009)


def test_the_error_for_an_unknown_agent_names_the_known_ones() -> None:
    error = unknown_agent("codr", [f"agent-{n}" for n in range(12)])

    assert error.field == "agent"
    assert error.hint == (
        "known agents: agent-0, agent-1, agent-2, agent-3, agent-4, agent-5, agent-6, agent-7, agent-8, "
        "agent-9, and 2 more; start a worker that serves it first"
    )
    assert "agents: coder, agent-0, " in (unknown_agent("codr", ["agent-0", "b", "coder"]).hint or "")
    assert "none yet" in (unknown_agent("codr", []).hint or "")
