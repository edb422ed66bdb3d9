"""Every no of the machine has a code, says which task it is about, and moves nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from endwell import errors as e
from endwell.machine.decide import decide
from endwell.machine.decision import Decision, Evidence
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.inside import MAX_DEPTH
from endwell.model.moments import SECOND
from endwell.model.task import Task
from tests.machine.stages import (
    LAPSED,
    LIMITS,
    NOW,
    asked,
    call,
    cancelled_task,
    dead_letter,
    dispatched_task,
    effect_after,
    give,
    offer,
    queued_task,
    running_task,
    submit,
    succeeded_task,
    suspended_task,
    task_awaiting_approval,
    task_waiting_for,
    to,
)

INTENT = effect_after(None, running_task(), offer(running_task(), c.IntendEffect))
assert INTENT is not None
OVER = (INTENT.not_after or 0) + LIMITS.effect_margin
OPEN = Evidence(effect=INTENT)
DONE = Evidence(effect=replace(INTENT, status="done"))
UNKNOWN = Evidence(effect=replace(INTENT, status="unknown", attempt_id="a0"))
ANOTHERS = Evidence(effect=replace(INTENT, attempt_id="a0"))


class No(NamedTuple):
    """A command that is refused, and how."""

    task: Task | None
    command: Any
    error: type[e.EndwellError]
    code: str
    seen: Evidence = Evidence()
    now: int = NOW
    field: str | None = None
    has_hint: bool = False
    names_task: bool = True
    mentions: str = ""


def chained(**options: Any) -> Any:
    return submit("t2", **options)


ASKING = task_waiting_for(asked(by=("ada", "bob"), quorum=2))
VOTED = give(ASKING, to(c.Approve, approval_id="t.s.ask"))
ASKED_FIRST = task_awaiting_approval(approval_by=("ada",))
REPLAYED = give(dead_letter(), to(c.Replay))
ABANDONED = give(dead_letter(), to(c.Abandon))
KEYED = queued_task(agent_key="k")
REFUSALS: dict[str, No] = {
    "no such task": No(None, to(c.Cancel), e.NotFound, "no_such_task", names_task=False),
    "an ended task": No(succeeded_task(), to(c.Cancel), e.TaskEnded, "task_ended"),
    "another status": No(
        queued_task(), to(c.Unblock), e.WrongStatus, "wrong_status", mentions="Unblock", has_hint=True
    ),
    "calls that go too deep": No(
        None,
        chained(depth=MAX_DEPTH + 1),
        e.BadInput,
        "calls_too_deep",
        has_hint=True,
        names_task=False,
    ),
    "a key that waits for itself": No(
        None,
        chained(agent_key="k", held_keys=("coder/k",)),
        e.BadInput,
        "key_held_by_ancestor",
        has_hint=True,
        names_task=False,
    ),
    "a key of another task": No(
        queued_task(),
        submit(payload_hash="other", key="order-1"),
        e.IdempotencyConflict,
        "idempotency_conflict",
        field="key",
        has_hint=True,
        mentions="'order-1'",
    ),
    "an id of another task": No(
        queued_task(),
        submit(payload_hash="other"),
        e.IdempotencyConflict,
        "idempotency_conflict",
        field="key",
        has_hint=True,
        mentions="'t'",
    ),
    "a claim without a lease": No(queued_task(), to(c.Claim), e.StaleAttempt, "stale_attempt", LAPSED),
    "an offer that is over": No(
        dispatched_task(), to(c.Claim, turn_id="t.t1", epoch=2), e.WrongStatus, "stale_offer"
    ),
    "an offer of another turn": No(
        dispatched_task(), to(c.Claim, turn_id="t.t2", epoch=1), e.WrongStatus, "stale_offer"
    ),
    "an offer that was taken back": No(
        replace(dispatched_task(), status="queued"),
        to(c.Claim, turn_id="t.t1", epoch=1),
        e.WrongStatus,
        "stale_offer",
    ),
    "a turn that is not the next": No(
        queued_task(), to(c.Claim, turn_id="t.t2", epoch=1), e.WrongStatus, "stale_offer"
    ),
    "an epoch that is not the next": No(
        queued_task(), to(c.Claim, turn_id="t.t1", epoch=2), e.WrongStatus, "stale_offer"
    ),
    "a suspect for a worker that holds another": No(
        replace(queued_task(), crash_count=2),
        to(c.Claim, may_take_suspect=False),
        e.WrongStatus,
        "suspect_is_held",
        mentions="one more crash",
    ),
    "a start that lies ahead": No(queued_task(delay=1), to(c.Claim), e.WrongStatus, "too_early"),
    "a key that is held": No(
        KEYED, to(c.Claim), e.WrongStatus, "key_is_held", Evidence(key_holder="t7"), mentions="coder/k"
    ),
    "a task whose time is up": No(
        queued_task(deadline=5), to(c.Dispatch), e.WrongStatus, "clock_is_due", now=NOW + 5
    ),
    "a holder that is newer": No(
        running_task(), to(c.Reclaim, attempt_id="a0"), e.WrongStatus, "wrong_status", LAPSED
    ),
    "a lease that holds": No(running_task(), to(c.Reclaim), e.WrongStatus, "lease_holds"),
    "a block by who was replaced": No(
        running_task(), to(c.Block, attempt_id="a0"), e.StaleAttempt, "stale_attempt"
    ),
    "a block for what is settled": No(
        running_task(), to(c.Block, effect_key="mail"), e.WrongStatus, "effect_settled", DONE
    ),
    "a replay of a success": No(succeeded_task(), to(c.Replay), e.WrongStatus, "already_succeeded"),
    "a second replay": No(
        REPLAYED, to(c.Replay), e.WrongStatus, "dead_letter_closed", mentions="replayed as t-again"
    ),
    "a replay of what was abandoned": No(
        ABANDONED, to(c.Replay), e.WrongStatus, "dead_letter_closed", mentions="already abandoned"
    ),
    "an abandoned success": No(succeeded_task(), to(c.Abandon), e.WrongStatus, "dead_letter_closed"),
    "an abandoned cancellation": No(cancelled_task(), to(c.Abandon), e.WrongStatus, "dead_letter_closed"),
    "an approval that was not requested": No(
        ASKING,
        to(c.Approve, approval_id="t.s.other"),
        e.WrongStatus,
        "approval_not_open",
        mentions="t.s.other",
    ),
    "a yes to the start of what has started": No(
        ASKING, to(c.Approve), e.WrongStatus, "approval_not_open", mentions="approval t"
    ),
    "a rejection that was not requested": No(
        ASKING, to(c.Reject, approval_id="t.s.other"), e.WrongStatus, "approval_not_open"
    ),
    "a stranger's yes": No(
        ASKED_FIRST,
        to(c.Approve, actor="eve"),
        e.Refused,
        "not_an_approver",
        field="as",
        names_task=False,
        mentions="ada may",
    ),
    "a second voice of the same person": No(
        VOTED, to(c.Approve, approval_id="t.s.ask"), e.WrongStatus, "already_voted", names_task=False
    ),
    "a yes to something else": No(
        ASKED_FIRST,
        to(c.Approve, shown_hash="other"),
        e.Refused,
        "approval_changed",
        has_hint=True,
        names_task=False,
    ),
    "a yes that comes too late": No(
        ASKED_FIRST, to(c.Approve), e.WrongStatus, "approval_expired", now=NOW + 3600 * SECOND
    ),
    "a wait for nothing": No(
        running_task(), to(c.Suspend, calls=()), e.BadInput, "no_waits", names_task=False
    ),
    "a sleep beyond the end": No(
        running_task(),
        to(c.Suspend, calls=(call("timer", "nap", 86_400),)),
        e.BadInput,
        "beyond_deadline",
        has_hint=True,
        mentions="sleep",
    ),
    "an approval beyond the end": No(
        running_task(),
        to(c.Suspend, calls=(call("signal", "go"), asked(86_400))),
        e.BadInput,
        "beyond_deadline",
        has_hint=True,
        mentions="approval",
    ),
    "an answer to an approval": No(
        ASKING, to(c.Answer, tool_call_id="t.s.ask"), e.WrongStatus, "not_a_tool_call"
    ),
    "an answer to another task's call": No(
        suspended_task(), to(c.Answer, tool_call_id="t2.s.w1"), e.NotFound, "no_such_call"
    ),
    "a signal to an ended task": No(succeeded_task(), to(c.Signal), e.TaskEnded, "task_ended"),
    "a word on no effect": No(
        running_task(), to(c.SettleEffect), e.NotFound, "no_such_effect", names_task=False
    ),
    "a word on a settled effect": No(
        running_task(), to(c.SettleEffect), e.WrongStatus, "effect_settled", DONE
    ),
    "a word on what may be under way": No(
        running_task(), to(c.SettleEffect), e.WrongStatus, "effect_in_flight", OPEN, has_hint=True
    ),
    "a word of who was replaced": No(
        running_task(), to(c.SettleEffect, attempt_id="a0"), e.StaleAttempt, "stale_attempt", UNKNOWN
    ),
    "a worker's doubtful word": No(
        running_task(),
        to(c.SettleEffect, attempt_id="a1", verdict="not_done"),
        e.WrongStatus,
        "effect_unknown",
        UNKNOWN,
        now=OVER,
    ),
    "a worker's early word": No(
        running_task(),
        to(c.SettleEffect, attempt_id="a1", verdict="not_done", holder_gone=True),
        e.WrongStatus,
        "effect_in_flight",
        UNKNOWN,
        now=OVER - 1,
        has_hint=True,
    ),
    "a result of another's effect": No(
        running_task(), to(c.FinishEffect), e.StaleAttempt, "stale_attempt", ANOTHERS
    ),
    "a result of a settled effect": No(
        running_task(), to(c.FinishEffect), e.StaleAttempt, "stale_attempt", DONE
    ),
    "a result of no effect": No(running_task(), to(c.FinishEffect), e.StaleAttempt, "stale_attempt"),
    "a doubt about another's effect": No(
        running_task(), to(c.DoubtEffect), e.StaleAttempt, "stale_attempt", ANOTHERS
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_the_machine_names_each_refusal(what: str) -> None:
    no = REFUSALS[what]
    decision = decide(no.task, no.command, no.now, LIMITS, no.seen)

    refusal = decision.refusal
    assert decision == Decision(refusal=refusal)
    assert refusal is not None
    assert (type(refusal), refusal.code, refusal.field) == (no.error, no.code, no.field)
    assert bool(refusal.hint) is no.has_hint
    assert refusal.task_id == (no.task.id if no.names_task and no.task is not None else None)
    assert no.mentions in str(refusal)


@pytest.mark.parametrize("holder", ["a1", None])
def test_a_stale_write_is_refused_and_the_log_names_the_holder(holder: str | None) -> None:
    task = replace(running_task(), attempt_id=holder) if holder else queued_task()
    decision = decide(task, to(c.Finish, attempt_id="a0"), NOW, LIMITS)

    assert decision.facts == (f.WriteRefused(command="Finish", attempt_id="a0", holder=holder),)
    assert isinstance(decision.refusal, e.StaleAttempt)
    assert decision.refusal.task_id == "t"
