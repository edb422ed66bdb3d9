"""What is written when a task is offered, claimed, given back, held and freed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.inside import Family, packed_family
from endwell.model.moments import SECOND
from endwell.policy.limits import Limits
from tests.machine.fields.commands import DAY, answered
from tests.machine.stages import (
    LAPSED,
    LIMITS,
    NOW,
    cooling_task,
    dispatched_task,
    effect_after,
    escalated_task,
    offer,
    queued_task,
    running_task,
    task_held_by_a_person,
    to,
)

OFF = Limits(ring_after=None, dispatch_timeout=None, active_reap=None)


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
