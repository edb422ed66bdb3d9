"""What the machine writes for each command, field by field.

These tests pin every field, so that mutants are noticed: an intended change of a field changes them too.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.approval import OpenApproval
from endwell.model.card import Card
from endwell.model.inside import Family, Inside, packed_family, packed_inside
from endwell.model.task import Task
from endwell.policy.limits import SECOND, Limits
from tests.machine.stages import (
    LAPSED,
    LIMITS,
    NOW,
    cooling_task,
    dead_letter,
    dispatched_task,
    effect_after,
    escalated_task,
    offer,
    queued_task,
    running_task,
    submit,
    task_held_by_a_person,
    to,
)

DAY = 86_400 * SECOND
OFF = Limits(ring_after=None, dispatch_timeout=None, active_reap=None)
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


def answered(task: Task | None, command: c.TaskCommand, limits: Limits = LIMITS, **seen: Any) -> Decision:
    return decide(task, command, NOW, limits, Evidence(**seen))


# asking for work


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


# offering and claiming


def test_an_offer_has_its_clocks_and_says_how_it_travels() -> None:
    offered = f.TaskDispatched(
        turn_id="t.t1",
        turn_number=1,
        dispatch_count=1,
        epoch=1,
        slot=3,
        ring_at=NOW + 10 * SECOND,
        dispatch_by=NOW + 30 * SECOND,
        is_offered=True,
    )

    assert answered(queued_task(), to(c.Dispatch, slot=3)) == Decision(facts=(offered,))
    carried = answered(queued_task(), to(c.Dispatch, slot=3, is_streamed=True))
    assert carried.facts == (replace(offered, is_offered=False),)
    quiet = answered(queued_task(), to(c.Dispatch, slot=3), OFF)
    assert quiet.facts == (replace(offered, ring_at=None, dispatch_by=None),)


def test_a_claim_names_its_attempt_and_from_the_queue_also_the_offer() -> None:
    command = to(c.Claim, attempt_id="a7", session_id="s7", slot=3, agent_version="v2")
    claimed = f.TaskClaimed(
        attempt_id="a7", session_id="s7", progress_by=NOW + 300 * SECOND, agent_version="v2"
    )
    offered = f.TaskDispatched(turn_id="t.t1", turn_number=1, dispatch_count=1, epoch=1, slot=3)

    assert answered(queued_task(), command) == Decision(facts=(offered, claimed))
    assert answered(dispatched_task(), command) == Decision(facts=(claimed,))
    assert answered(dispatched_task(), replace(command, turn_id="t.t1", epoch=1)).facts == (claimed,)
    assert answered(dispatched_task(), command, OFF).facts == (replace(claimed, progress_by=NOW + DAY),)


@pytest.mark.parametrize(
    ("redelivery", "turn_id", "expected"),
    [
        (None, None, ("t.t3", 3, 6)),
        ("reclaim", "its turn", ("its turn", 2, 6)),
        ("resume", "its turn", ("its turn", 2, 5)),
        ("hand_back", "its turn", ("its turn", 2, 5)),
    ],
)
def test_a_resumed_turn_keeps_its_id_and_only_new_or_lost_turns_are_counted(
    redelivery: Any, turn_id: str | None, expected: tuple[str, int, int]
) -> None:
    task = replace(
        queued_task(), turn_number=2, dispatch_count=5, epoch=8, redelivery=redelivery, turn_id=turn_id
    )

    (fact,) = offer(task, c.Dispatch).facts

    assert isinstance(fact, f.TaskDispatched)
    assert (fact.turn_id, fact.turn_number, fact.dispatch_count) == expected
    assert (fact.epoch, fact.guard_at) == (9, None)


@pytest.mark.parametrize(
    ("count", "chain", "redelivery", "guarded"),
    [
        (8, 0, None, False),
        (9, 0, None, True),
        (4, 4, None, False),
        (4, 5, None, True),
        (9, 0, "resume", False),
    ],
)
def test_the_guard_is_set_by_the_delivery_that_reaches_the_limit(
    count: int, chain: int, redelivery: Any, guarded: bool
) -> None:
    family = packed_family(Family(chain=chain))
    task = replace(queued_task(), dispatch_count=count, family=family, redelivery=redelivery)

    (fact,) = offer(task, c.Dispatch).facts

    assert isinstance(fact, f.TaskDispatched)
    assert fact.guard_at == (NOW if guarded else None)


def test_a_task_is_delivered_at_its_start_and_until_its_last_moment() -> None:
    task = queued_task(agent_key="k", deadline=5)

    assert decide(task, to(c.Claim), NOW, LIMITS, Evidence(key_holder="t")).refusal is None
    assert decide(task, to(c.Claim), NOW + 4, LIMITS).refusal is None
    assert decide(replace(task, clock_at=None), to(c.Claim), NOW, LIMITS).refusal is None
    guarded = replace(queued_task(), guard_at=NOW, clock_at=NOW, clock_rule="runaway_guard")
    refusal = decide(guarded, to(c.Claim), NOW, LIMITS).refusal
    assert refusal is not None
    assert (refusal.code, "runaway_guard" in str(refusal)) == ("clock_is_due", True)
    # another clock, such as the ring of an offer, does not prevent a claim
    assert decide(dispatched_task(), to(c.Claim), NOW + 20 * SECOND, LIMITS).refusal is None


def test_time_does_not_run_back_within_a_task() -> None:
    (fact,) = offer(queued_task(), c.Dispatch, NOW - 5).facts

    assert isinstance(fact, f.TaskDispatched)
    assert fact.ring_at == NOW + 10 * SECOND


# letting go


def test_a_failed_turn_is_tried_again_when_its_agent_asks_for_it_or_by_chance() -> None:
    for said, delay in (({"retry_after": 7}, 7), ({"fraction": 0.0}, SECOND * 4 // 10)):
        again = offer(running_task(), c.FailTurn, **said).facts[-1]
        assert isinstance(again, f.TaskRetryScheduled)
        assert again.run_at == NOW + delay


def test_a_turn_is_handed_back_with_the_reason() -> None:
    assert offer(running_task(), c.HandBack, reason="drain") == Decision(
        facts=(f.TaskHandedBack(attempt_id="a1", reason="drain"),)
    )


def test_a_reclaim_names_the_old_holder_and_the_supervisor() -> None:
    task = replace(running_task(), crash_times=str(NOW - 60 * SECOND), session_id="s1")
    command = to(c.Reclaim, actor="pmo", old_consumer="c1", new_consumer="c2", message_id="m1")
    crashes = f"{NOW - 60 * SECOND},{NOW}"
    reclaimed = f.TaskReclaimed(
        attempt_id="a1",
        session_id="s1",
        by="pmo",
        reason="lease_lapsed",
        epoch=2,
        crash_count=2,
        crash_times=crashes,
        old_consumer="c1",
        new_consumer="c2",
        message_id="m1",
    )

    assert decide(task, command, NOW, LIMITS, LAPSED) == Decision(facts=(reclaimed,))
    strict = Limits(crash_limit=2)
    assert decide(task, command, NOW, strict, LAPSED).facts == (replace(reclaimed, guard_at=NOW),)
    unknown = replace(task, session_id=None)
    assert decide(unknown, command, NOW, LIMITS, LAPSED).facts == (replace(reclaimed, session_id=""),)
    handed_over = replace(command, reason="forgotten")
    assert decide(task, handed_over, NOW, LIMITS).facts == (replace(reclaimed, reason="forgotten"),)


# people


def test_a_start_that_lies_ahead_can_be_rushed_and_another_need_not() -> None:
    assert offer(queued_task(delay=1), c.RunNow, actor="ada") == Decision(
        facts=(f.TaskRushed(run_at=NOW, by="ada"),)
    )
    assert offer(queued_task(), c.RunNow) == Decision()


@pytest.mark.parametrize("kind", [c.RunNow, c.Unblock])
def test_the_time_of_a_persons_hold_is_given_back_and_a_cooldowns_is_not(kind: type[c.TaskCommand]) -> None:
    held, cooling = task_held_by_a_person(), cooling_task()

    freed = f.TaskUnblocked(by="eve", run_at=NOW + 7, ends_by=NOW + DAY)
    assert offer(held, kind, NOW + 7, actor="eve") == Decision(facts=(replace(freed, ends_by=NOW + DAY + 7),))
    assert offer(cooling, kind, NOW + 7, actor="eve") == Decision(facts=(freed,))


def test_an_assignment_names_the_person_who_made_it() -> None:
    assert offer(queued_task(), c.Assign, owner="eve", actor="ada") == Decision(
        facts=(f.TaskAssigned(owner="eve", by="ada"),)
    )
    assert offer(cooling_task(), c.Assign, owner="eve", actor="ada") == Decision(
        facts=(f.TaskAssigned(owner="eve", by="ada"),)
    )
    assert offer(escalated_task(), c.Assign, owner="eve", actor="ada") == Decision(
        facts=(f.TaskAssigned(owner="eve", by="ada", accepts_hold=True),)
    )


@pytest.mark.parametrize(
    ("asked", "owned", "holder"), [("eve", "bob", "eve"), (None, "bob", "bob"), (None, None, "operator")]
)
def test_a_blocked_task_has_an_owner_who_is_reminded(
    asked: str | None, owned: str | None, holder: str
) -> None:
    task = replace(running_task(), owner=owned)

    assert offer(task, c.Block, reason="look", owner=asked, attempt_id="a1") == Decision(
        facts=(f.TaskBlocked(reason="look", owner=holder, remind_at=NOW + DAY, is_unaccepted=True),)
    )


def test_a_cooldown_has_no_owner() -> None:
    assert offer(queued_task(), c.Block, reason="cool", cooldown=5, owner="eve") == Decision(
        facts=(f.TaskBlocked(reason="cool", recover_at=NOW + 5),)
    )


def test_a_task_is_blocked_for_an_effect_while_that_is_open() -> None:
    task = running_task()
    open_one = effect_after(None, task, offer(task, c.IntendEffect))
    assert open_one is not None
    settled = Evidence(effect=replace(open_one, status="done"))

    for key, seen in (("mail", Evidence(effect=open_one)), ("mail", Evidence()), (None, settled)):
        assert decide(task, to(c.Block, effect_key=key), NOW, LIMITS, seen).refusal is None


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


# the family


@pytest.mark.parametrize(
    ("owned", "said", "owner"), [("bob", "eve", "bob"), (None, "eve", "eve"), (None, "", "operator")]
)
def test_a_child_left_by_its_parent_has_an_owner(owned: str | None, said: str, owner: str) -> None:
    child = queued_task(parent_id="p", on_parent_end="leave", owner=owned)

    assert offer(child, c.Disown, owner=said) == Decision(facts=(f.TaskOrphaned(parent_id="p", owner=owner),))


def test_a_child_that_is_not_left_is_cancelled_because_of_its_parent() -> None:
    decision = offer(queued_task(parent_id="p"), c.Disown, actor="pmo")

    assert [(fact.type, getattr(fact, "reason", ""), getattr(fact, "by", "")) for fact in decision.facts] == [
        ("task.cancelled", "parent_ended", "pmo")
    ]
    assert offer(queued_task(parent_id="other"), c.Disown) == Decision()
