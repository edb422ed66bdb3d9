"""Who may change a task, how it ends, and what must be left behind then: rules for every step."""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec.structs import replace

from endwell import errors as e
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.card import deliverable_id
from endwell.model.inside import lineage_of
from tests.machine.walk.invariants import rule_due, verdict_on
from tests.machine.walk.step import ONLY_BY_HOLDER, Step, at_rest
from tests.machine.walk.violation import must

TERMINAL_FACTS: Final = (f.SucceededEnding, f.FailedEnding, f.TimedOutEnding, f.CancelledEnding)
LATE_FACTS: Final = (
    f.WriteRefused,
    f.DeadLetterReplayed,
    f.DeadLetterAbandoned,
    f.EffectSettled,
    f.InboxSkipped,
)
EPOCH_RAISERS: Final = (f.TaskDispatched, f.TaskResumed, f.TaskReclaimed, f.TaskReaped)
OUTCOMES: Final = {"succeeded": "success", "failed": "failed", "timeout": "timeout", "cancelled": "canceled"}


def a_refusal_moves_nothing(step: Step) -> None:
    if step.decision.refusal is None:
        must(step.count(f.WriteRefused) == 0, "a refused write that was not refused")
        return
    must(step.count(f.WriteRefused) == len(step.decision.facts), "a refusal that changes something")
    must(at_rest(step.after) == at_rest(step.before), "a refused command moved the task")


def only_the_current_attempt_writes(step: Step) -> None:
    if isinstance(step.command, c.Block) and step.command.attempt_id is not None:
        must(step.holds, "a stale attempt blocked the task")
    if not isinstance(step.command, ONLY_BY_HOLDER):
        must(step.count(f.WriteRefused) == 0, "a write is refused that was none")
        return
    is_stale = isinstance(step.decision.refusal, e.StaleAttempt)
    must(is_stale != step.holds, "a stale attempt wrote, or the current one was called stale")
    must(step.count(f.WriteRefused) == is_stale, "a stale write leaves its trace exactly once")


def only_a_claim_takes_hold(step: Step) -> None:
    if step.count(f.TaskDispatched):
        it_may_be_delivered(step)
    before, after = step.before, step.after
    if after.attempt_id is None or after.attempt_id == before.attempt_id:
        must(step.count(f.TaskClaimed) == 0, "a claim without an attempt")
        return
    must(isinstance(step.command, c.Claim), f"{type(step.command).__name__} made a new attempt")
    must(before.attempt_id is None, "an attempt was taken over without a reclaim")
    must(step.seen.session_is_live, "a session without a lease claimed a task")
    it_may_be_delivered(step)


def a_reclaim_needs_a_lapsed_lease(step: Step) -> None:
    if not isinstance(step.command, c.Reclaim) or not step.moves:
        return
    must(step.before.attempt_id == step.command.attempt_id, "a reclaim from an attempt that does not hold")
    gone = not step.seen.session_is_live or step.command.reason != "lease_lapsed"
    must(gone, "a reclaim from a session whose lease holds")
    must(step.after.turn_id == step.before.turn_id, "a reclaim that changes the turn")
    must(not step.after.is_ended, "a reclaim that ends the task")


def it_ends_once(step: Step) -> None:
    if step.before.is_ended:
        must(step.count(*LATE_FACTS) == len(step.decision.facts), "an ended task moved")
        letters = {"dead_letter": step.before.dead_letter, "superseded_by": step.before.superseded_by}
        must(at_rest(replace(step.after, **letters)) == at_rest(step.before), "an ended task was moved")
    must(step.count(*TERMINAL_FACTS) == step.ends_the_task, "not exactly one terminal fact at the end")


def a_turn_ends_once(step: Step) -> None:
    before, after = step.before, step.after
    ended = [fact for fact in step.decision.facts if isinstance(fact, f.TurnEnded)]
    must(len(ended) <= 1, "two turn ends at once")
    if ended:
        must(ended[0].turn_id == before.turn_id, "a turn ended that was not open")
        must(after.turn_id is None, "an ended turn is still open")
        must(after.waits is None, "an ended turn still waits")
        if after.is_ended:
            must(ended[0].outcome == OUTCOMES[after.status], "turn and task ended differently")
    elif before.turn_id is not None:
        must(after.turn_id == before.turn_id, "a turn was lost without an end")
    elif after.turn_id is not None:
        must(after.turn_number == before.turn_number + 1, "a new turn without a new number")
        must(after.turn_id == f"{after.id}.t{after.turn_number}", "a turn id that may be used twice")
    must(after.turn_number >= before.turn_number, "turn numbers run back")


def the_epoch_rises_where_it_must(step: Step) -> None:
    rise = step.after.epoch - step.before.epoch
    must(rise == step.count(*EPOCH_RAISERS), f"the epoch rose by {rise}")
    by_force = isinstance(step.command, c.ClockFired | c.Cancel | c.Disown)
    must(step.count(f.TaskReaped) == (by_force and step.count(f.TurnEnded)), "forced or not is wrong")


def an_approval_is_given_by_approve(step: Step) -> None:
    was_open, is_open = step.before.expire_at is not None, step.after.expire_at is not None
    approved = isinstance(step.command, c.Approve) and bool(step.count(f.ApprovalApproved))
    asked = isinstance(step.command, c.Claim | c.Dispatch) and bool(step.count(f.ApprovalRequested))
    must(not asked or (bool(step.seen.rules) and step.before.started_at is None), "asked without need")
    must(is_open == ((was_open or asked) and not approved), "an approval was given or lost by something else")


def one_deliverable_at_the_end(step: Step) -> None:
    made = [card for card in step.decision.cards if card.kind == "task.deliverable"]
    fallbacks = [card for card in made if card.id == f"{step.before.turn_id}.out"]
    forced_on = bool(step.count(f.TaskReaped)) and not step.after.is_ended
    must(len(fallbacks) == forced_on, "a turn ended by force, and no fallback, or the other way round")
    named = [e.deliverable_card for e in step.decision.facts if isinstance(e, f.TurnEnded)]
    must(
        [name for name in named if name] == [card.id for card in fallbacks],
        "a fallback without its event",
    )
    cards = [card for card in made if card not in fallbacks]
    must(len(cards) == step.ends_the_task, "not exactly one deliverable at the end, or one before it")
    for card in cards:
        must(card.id == deliverable_id(step.before.id), "a deliverable under another id")
        is_report = step.after.status != "succeeded"
        fits = not is_report or card.hash == hashlib.sha256(card.content).hexdigest()
        must(fits, "the deliverable's hash is not that of its content")


def a_dead_letter_if_the_reason_says_so(step: Step) -> None:
    expected = step.ends_the_task and verdict_on(step.after)[1]
    must(step.count(f.TaskDeadLettered) == expected, f"dead letter or not is wrong: {step.after.reason}")


def a_replay_asks_for_the_same_again(step: Step) -> None:
    new = step.decision.spawn
    must((new is not None) == bool(step.count(f.DeadLetterReplayed)), "a spawn without a replay, or none")
    if new is not None:
        must(new.replay_of == step.before.id, "a replay that does not say of what")
        must(new.lineage == lineage_of(step.before), "a replay that forgets which effects are its own")
        needs_approval = step.before.expire_at is not None
        must((new.approval_within is not None) == needs_approval, "a replay evades the approval")


def it_may_be_delivered(step: Step) -> None:
    must(step.before.run_at <= step.now, "delivered before its time")
    must(step.seen.key_holder in (None, step.before.id), "delivered while another task holds the key")
    must(rule_due(step.before, step.now) not in ("ends_by", "guard"), "delivered instead of ended")
