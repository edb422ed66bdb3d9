"""What an attempt records about its effects, and how an unknown outcome is settled."""

from __future__ import annotations

import msgspec

from endwell import errors as e
from endwell.machine.decision import Decision, Evidence, refuse, refuse_status
from endwell.machine.holds import EFFECT_UNKNOWN, end_hold, is_held_for
from endwell.machine.steps import progress_deadline, result_kind, step_card, step_recorded
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model.card import Card
from endwell.model.content import fingerprint
from endwell.model.effect import Effect
from endwell.model.inside import lineage_of, origin_at
from endwell.model.moments import moment
from endwell.model.task import Task
from endwell.policy import ledger
from endwell.policy.limits import Limits

_COMMITTED = "side_effect_committed"


def intend_effect(task: Task, command: c.IntendEffect, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Ask the ledger. An intent is recorded before anything happens outside, so that others find it."""
    answer = ledger.answer(
        seen.effect,
        lineage=lineage_of(task),
        step=command.step,
        args_hash=command.args_hash,
        timeout=command.timeout,
        now=now,
        margin=limits.effect_margin,
        restored_at=seen.restored_at,
        asked_since=origin_at(task),
    )
    match answer:
        case ledger.AllowExecute():
            intended = _intent_fact(task, command, answer.not_after, now, limits)
            return Decision(facts=(intended,), ledger=answer)
        case ledger.ReturnRecordedResult():
            return _found_done(task, command, answer, now, limits)
        case ledger.Rejected(code="effect_unknown") if seen.effect is None or seen.effect.is_settled:
            return _doubt_after_restore(task, command, answer, now, limits, seen.restored_at or now)
        case ledger.Rejected(code="effect_unknown") if _is_new_doubt(seen.effect, task):
            reason = "its attempt did not say how it ended"
            doubt = f.EffectDoubted(key=command.key, reason=reason, adopts=True)
            return Decision(facts=(doubt,), ledger=answer)
    return Decision(ledger=answer)


def _intent_fact(
    task: Task, command: c.IntendEffect, not_after: int, now: int, limits: Limits
) -> f.EffectIntended:
    return f.EffectIntended(
        key=command.key,
        step=command.step,
        args_hash=command.args_hash,
        lineage=lineage_of(task),
        not_after=not_after,
        progress_by=progress_deadline(task, now, limits, command.timeout),
    )


def _doubt_after_restore(
    task: Task, command: c.IntendEffect, answer: ledger.Rejected, now: int, limits: Limits, restored_at: int
) -> Decision:
    """The effect may have been made since the backup, or be in progress since just before the restore.

    The restore is over in any case, even if this clock is behind the clock that made the mark.
    """
    intended = _intent_fact(task, command, min(restored_at, now) + command.timeout, now, limits)
    doubt = f.EffectDoubted(key=command.key, reason=answer.message)
    return Decision(facts=(intended, doubt), ledger=answer)


def _is_new_doubt(effect: Effect | None, task: Task) -> bool:
    """Whether the doubt must be recorded: the asking task adopts the effect, and waits for its verdict."""
    return effect is not None and (effect.status == "intended" or effect.task_id != task.id)


def _found_done(
    task: Task, command: c.IntendEffect, answer: ledger.ReturnRecordedResult, now: int, limits: Limits
) -> Decision:
    """Another turn or task of the lineage did it: this step's record refers to that result."""
    content = msgspec.json.encode({"inputs": command.args_hash, "ref": answer.card})
    card = step_card(task, command.step, content, fingerprint(content), now, "step.reference")
    deadline = progress_deadline(task, now, limits, over=command.step)
    recorded = step_recorded(command.step, card, deadline, _COMMITTED)
    return Decision(facts=(recorded,), cards=(card,), ledger=answer)


def finish_effect(task: Task, command: c.FinishEffect, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Record the effect's result under its key and the step's record, in one commit."""
    if not _is_own_intent(seen.effect, command.attempt_id):
        return refuse(_not_own(task, command.key))
    kind = result_kind(command.is_checked)
    card = step_card(task, command.step, command.content, command.content_hash, now, kind)
    done = f.EffectDone(key=command.key, card=card.id, card_hash=card.hash)
    deadline = progress_deadline(task, now, limits, over=command.step)
    recorded = step_recorded(command.step, card, deadline, _COMMITTED, took=command.took)
    return Decision(facts=(done, recorded), cards=(card,))


def doubt_effect(task: Task, command: c.DoubtEffect, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Record that the outcome is unknown, which is never a failure that may simply be retried."""
    if not _is_own_intent(seen.effect, command.attempt_id):
        return refuse(_not_own(task, command.key))
    return Decision(facts=(f.EffectDoubted(key=command.key, reason=command.reason),))


def settle_effect(task: Task, command: c.SettleEffect, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Settle an unknown outcome: the holder's `reconcile` may, and so may a person."""
    effect = seen.effect
    if effect is None:
        return refuse(e.NotFound(f"there is no effect {command.key!r}", code="no_such_effect"))
    if effect.is_settled:
        why = f"the effect {effect.key!r} is already {effect.status}"
        return refuse_status(task, why, code="effect_settled")
    if effect.status == "intended" and not _may_settle_intent(effect, command, now, limits):
        return _refuse_in_flight(task, effect, limits)
    if command.attempt_id is not None:
        return _settle_by_attempt(task, command, now, limits, effect)
    return _settle_by_person(task, command, now, limits, effect)


def _may_settle_intent(effect: Effect, command: c.SettleEffect, now: int, limits: Limits) -> bool:
    """Its own attempt knows how its call ended; others wait until the call's time is over.

    That it was done may be said earlier, if the attempt that called is gone.
    """
    is_own = command.attempt_id is not None and effect.attempt_id == command.attempt_id
    is_known = command.verdict == "done" or command.call_ended
    is_found_done = command.verdict == "done" and command.holder_gone
    is_over = now >= ledger.surely_over_at(effect, limits.effect_margin)
    return (is_own and is_known) or is_found_done or is_over or _is_forced(command)


def _is_forced(command: c.SettleEffect) -> bool:
    return command.force and command.attempt_id is None


def _settle_by_attempt(
    task: Task, command: c.SettleEffect, now: int, limits: Limits, effect: Effect
) -> Decision:
    if command.attempt_id != task.attempt_id:
        return refuse(_not_own(task, command.key))
    time_is_over = now >= ledger.surely_over_at(effect, limits.effect_margin)
    may = ledger.may_run_again(
        same_attempt=effect.attempt_id == command.attempt_id,
        call_ended=command.call_ended,
        time_is_over=time_is_over,
        holder_gone=command.holder_gone,
        may_repeat=command.may_repeat,
    )
    if command.verdict == "not_done" and not may and not time_is_over:
        return _refuse_in_flight(task, effect, limits)
    if command.verdict == "not_done" and not may:
        why = f"the attempt that began the effect {effect.key!r} may still be calling; a person must say"
        return refuse_status(task, why, code=EFFECT_UNKNOWN)
    return _settle(task, command, now)


def _settle_by_person(
    task: Task, command: c.SettleEffect, now: int, limits: Limits, effect: Effect
) -> Decision:
    """ "Not done" counts when the call's time is over and no worker reports it in progress, or by force."""
    if command.verdict == "not_done" and not command.force:
        if command.is_running:
            return _refuse_running(task, effect)
        if now < ledger.surely_over_at(effect, limits.effect_margin):
            return _refuse_in_flight(task, effect, limits)
    settled = _settle(task, command, now)
    if not is_held_for(task, command.key):
        return settled
    onward = end_hold(task, now, limits, by=command.actor, run_at=now)
    return Decision(facts=(*settled.facts, *onward.facts), cards=settled.cards)


def _settle(task: Task, command: c.SettleEffect, now: int) -> Decision:
    cards: tuple[Card, ...] = ()
    if command.verdict == "done":
        content = b"null" if command.content is None else command.content
        digest = command.content_hash or fingerprint(content)
        card_id = f"{task.id}.e.{command.key}"
        cards = (Card(task.namespace, card_id, task.id, "step.result", content, digest, now),)
    settled = f.EffectSettled(
        key=command.key,
        verdict=command.verdict,
        by=command.actor,
        is_forced=_is_forced(command),
        card=cards[0].id if cards else None,
        card_hash=cards[0].hash if cards else None,
    )
    return Decision(facts=(settled,), cards=cards)


def _refuse_in_flight(task: Task, effect: Effect, limits: Limits) -> Decision:
    until = ledger.surely_over_at(effect, limits.effect_margin)
    why = f"a call of the effect {effect.key!r} may be in progress until {moment(until)}"
    hint = "settle it after that moment; --force says it now, and the log keeps who did"
    return refuse_status(task, why, code="effect_in_flight", hint=hint)


def _refuse_running(task: Task, effect: Effect) -> Decision:
    why = f"a worker reports that a call of the effect {effect.key!r} is still in progress"
    hint = "wait until it has ended; --force says it now, and the log keeps who did"
    return refuse_status(task, why, code="effect_in_flight", hint=hint)


def _is_own_intent(effect: Effect | None, attempt_id: str) -> bool:
    return effect is not None and effect.status == "intended" and effect.attempt_id == attempt_id


def _not_own(task: Task, key: str) -> e.StaleAttempt:
    return e.StaleAttempt(f"the effect {key!r} is not in this attempt's hands", task_id=task.id)
