"""What is written when a task is asked for: by a client, by a parent, and as a replay."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from endwell.machine.decision import Decision
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.approval import OpenApproval
from endwell.model.card import Card
from endwell.model.inside import Family, Inside, packed_family, packed_inside
from endwell.policy.limits import Limits
from tests.machine.fields.commands import DAY, answered
from tests.machine.stages import NOW, dead_letter, offer, queued_task, submit, to

PASSED_ON: dict[str, Any] = {
    "agent": "writer",
    "agent_key": "k",
    "key": "order-1",
    "channel": "side",
    "fair_key": "fair",
    "agent_version": "v1",
    "trace": "trace",
    "parent_id": "p",
    "replay_of": "t0",
    "priority": 3,
    "retry_policy": "{}",
    "owner": "ada",
}
FAMILY: dict[str, Any] = {
    "parent_agent": "boss",
    "parent_call": "p.s.1",
    "depth": 2,
    "held_keys": ("coder/other",),
    "on_parent_end": "leave",
    "lineage": "t0",
    "chain": 4,
}


def test_a_created_task_has_what_was_submitted() -> None:
    decision = answered(None, submit(payload=b"[1]", payload_hash="p", **PASSED_ON, **FAMILY))

    assert decision == Decision(
        facts=(
            f.TaskCreated(
                payload_card="t.in",
                payload_hash="p",
                run_at=NOW,
                ends_by=NOW + DAY,
                family=packed_family(Family(**FAMILY)),
                **PASSED_ON,
            ),
        ),
        cards=(Card("default", "t.in", "t", "task.instruction", b"[1]", "p", NOW),),
    )


@pytest.mark.parametrize(
    ("asked", "run_at", "ends_by"),
    [
        ({}, 0, DAY),
        ({"delay": 7}, 7, 7 + DAY),
        ({"deadline": 9}, 0, 9),
        ({"deadline": 0}, 0, 0),
        ({"delay": 7, "deadline": 9}, 7, 16),
        ({"deadline": 9, "ends_before": NOW + 8}, 0, 8),
        ({"deadline": 9, "ends_before": NOW + 10}, 0, 9),
    ],
)
def test_a_deadline_counts_from_the_start_and_a_child_ends_with_its_parent(
    asked: dict[str, int], run_at: int, ends_by: int
) -> None:
    task = queued_task(**asked)

    assert (task.run_at, task.ends_by) == (NOW + run_at, NOW + ends_by)


@pytest.mark.parametrize(
    ("chain", "limit", "guarded"), [(0, 1, False), (8, 10, False), (9, 10, True), (1, 2, True)]
)
def test_a_chain_that_was_delivered_too_often_never_starts(chain: int, limit: int, guarded: bool) -> None:
    decision = answered(None, submit(chain=chain), Limits(runaway_limit=limit))

    assert [getattr(fact, "guard_at", 0) for fact in decision.facts] == [NOW if guarded else None]


@pytest.mark.parametrize(("within", "expires"), [(5, 5), (2 * DAY, DAY)])
def test_a_start_that_must_be_agreed_to_is_asked_for_until_the_task_must_end(
    within: int, expires: int
) -> None:
    command = submit(payload_hash="p", approval_within=within, approval_by=("ada", "bob"), approval_quorum=2)

    created, asked = answered(None, command).facts

    assert created.type == "task.created"
    assert asked == f.ApprovalRequested(
        remind_at=NOW + DAY, expire_at=NOW + expires, shown_hash="p", by=("ada", "bob"), quorum=2
    )
    assert len(answered(None, command).cards) == 1


def test_a_repeated_call_finds_its_child_with_any_payload() -> None:
    child = queued_task(parent_call="p.s.1")

    assert answered(child, submit(payload_hash="other", parent_call="p.s.1")) == Decision()
    assert answered(child, submit(payload_hash="other", parent_call="p.s.2")).refusal is not None
    assert answered(queued_task(), submit(payload_hash="other")).refusal is not None


def test_a_call_without_an_agent_key_ignores_keys_of_its_ancestors() -> None:
    held = ("coder/None", "coder/k")

    assert answered(None, submit(held_keys=held)).refusal is None
    assert answered(None, submit(agent_key="other", held_keys=held)).refusal is None


def test_an_abandoned_dead_letter_names_the_person() -> None:
    assert offer(dead_letter(), c.Abandon, actor="ada", note="no use") == Decision(
        facts=(f.DeadLetterAbandoned(by="ada", note="no use"),)
    )


def test_a_replay_asks_for_the_same_work_again() -> None:
    kept = ("agent", "agent_key", "channel", "fair_key", "agent_version", "trace", "priority", "retry_policy")
    made = {**PASSED_ON, "chain": 4, "lineage": "t0", "approval_within": 50}
    asked = (OpenApproval("t.s.ask", "", ("eve",), 9), OpenApproval("t", "p", ("ada", "bob"), 2))
    task = replace(
        queued_task(**made),
        status="failed",
        dead_letter="open",
        inside=packed_inside(Inside(asked=asked)),
    )
    command = to(c.Replay, payload=b"[2]", payload_hash="p2", deadline=77)

    decision = answered(task, command)

    assert decision.facts == (f.DeadLetterReplayed(superseded_by="t-again", by="ada"),)
    assert decision.spawn == c.Resubmit(
        command_id="x.new",
        namespace="default",
        actor="ada",
        causation_id="x",
        task_id="t-again",
        payload=b"[2]",
        payload_hash="p2",
        deadline=77,
        replay_of="t",
        lineage="t0",
        chain=4,
        origin_at=task.created_at,
        owner="ada",
        approval_within=50,
        approval_by=("ada", "bob"),
        approval_quorum=2,
        **{name: asdict(task)[name] for name in kept},
    )


@pytest.mark.parametrize(("expire_at", "within"), [(None, None), (NOW + 5, 5), (NOW, 0), (NOW - 1, 0)])
def test_a_replay_of_an_unapproved_task_asks_again_for_the_same_time(
    expire_at: int | None, within: int | None
) -> None:
    spawn = answered(replace(dead_letter(), expire_at=expire_at), to(c.Replay)).spawn

    assert spawn is not None
    assert (spawn.approval_within, spawn.approval_by, spawn.approval_quorum) == (within, (), 1)
    assert spawn.lineage == "t"
