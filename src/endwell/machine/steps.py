"""Steps, drafts and effects: what an attempt records while it works, and how doubt is settled."""

from __future__ import annotations

import msgspec

from endwell import errors as e
from endwell.machine.decision import Decision, Evidence, refuse
from endwell.machine.unblock import EFFECT_UNKNOWN, is_held_for, unblock
from endwell.model import commands as c
from endwell.model import facts as f
from endwell.model import status as s
from endwell.model.card import Card, CardKind, draft_id, record_id
from endwell.model.content import fingerprint
from endwell.model.effect import Effect
from endwell.model.inside import inside_of, lineage_of, origin_at
from endwell.model.moments import moment
from endwell.model.task import Task
from endwell.policy import ledger
from endwell.policy.limits import Limits

PERMANENT_FAILURE = "permanent_failure"


def progress_deadline(task: Task, now: int, limits: Limits, allowed: int = 0, over: str = "") -> int:
    """By when the next sign of progress is due; without a reap limit only `ends_by` counts.

    A long step that is still open keeps the time it was allowed, whatever is reported beside it.
    """
    if limits.active_reap is None:
        return task.ends_by
    due = now + max(limits.active_reap, allowed + limits.step_grace if allowed else 0)
    open_steps = inside_of(task).doing if task.inside is not None and task.status == s.RUNNING else ()
    return max([due, *(until for step, until in open_steps if step != over)]) if open_steps else due


def start_step(task: Task, command: c.StartStep, now: int, limits: Limits, seen: Evidence) -> Decision:
    """A step that may outlast the reap limit is waited for, until its own timeout and a little longer."""
    deadline = progress_deadline(task, now, limits, command.timeout)
    return Decision(facts=(f.StepStarted(step=command.step, progress_by=deadline),))


def record_step(task: Task, command: c.RecordStep, now: int, limits: Limits, seen: Evidence) -> Decision:
    """One fact, and the result as a card that the step's identity finds."""
    cards: tuple[Card, ...] = ()
    if command.content is not None:
        cards = (_record(task, command.step, command.content, command.content_hash, now, _kind_of(command)),)
    recorded = f.StepRecorded(
        step=command.step,
        progress_by=progress_deadline(task, now, limits, over=command.step),
        result_type=command.result_type,
        card=cards[0].id if cards else None,
        card_hash=cards[0].hash if cards else None,
        took=command.took,
        error=command.error,
        card_kind=_told_kind(*cards),
    )
    return Decision(facts=(recorded,), cards=cards)


def _kind_of(command: c.RecordStep | c.FinishEffect) -> CardKind:
    if isinstance(command, c.RecordStep) and command.result_type == PERMANENT_FAILURE:
        return "step.failure"
    return "step.checked" if command.is_checked else "step.result"


def _told_kind(*cards: Card) -> CardKind | None:
    """The kind of a record's card, where the result type leaves it open."""
    return "step.checked" if cards and cards[0].kind == "step.checked" else None


def keep_draft(task: Task, command: c.KeepDraft, now: int, limits: Limits, seen: Evidence) -> Decision:
    """The last draft counts; earlier ones stay as cards."""
    card_id = draft_id(task.id, task.version + 1)
    card = Card(task.namespace, card_id, task.id, "task.draft", command.content, command.content_hash, now)
    kept = f.DraftKept(card=card.id, card_hash=card.hash, progress_by=progress_deadline(task, now, limits))
    return Decision(facts=(kept,), cards=(card,))


def intend_effect(task: Task, command: c.IntendEffect, now: int, limits: Limits, seen: Evidence) -> Decision:
    """The intent is written before anything happens outside; whoever comes later finds it."""
    lineage = lineage_of(task)
    answer = ledger.answer(
        seen.effect,
        lineage=lineage,
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
            intended = f.EffectIntended(
                key=command.key,
                step=command.step,
                args_hash=command.args_hash,
                lineage=lineage,
                not_after=answer.not_after,
                progress_by=progress_deadline(task, now, limits, command.timeout),
            )
            return Decision(facts=(intended,), ledger=answer)
        case ledger.ReturnRecordedResult():
            return _found_done(task, command, answer, now, limits)
        case ledger.Rejected(code="effect_unknown") if seen.effect is None or seen.effect.is_settled:
            return _made_before_restore(task, command, answer, now, limits, seen.restored_at or now)
        case ledger.Rejected(code="effect_unknown") if _is_news(seen.effect, task):
            reason = "its attempt did not say how it ended"
            doubt = f.EffectDoubted(key=command.key, reason=reason, adopts=True)
            return Decision(facts=(doubt,), ledger=answer)
    return Decision(ledger=answer)


def _made_before_restore(
    task: Task, command: c.IntendEffect, answer: ledger.Rejected, now: int, limits: Limits, restored_at: int
) -> Decision:
    """The effect may have been made since the backup, or be in progress since just before the restore.

    The restore is over in any case, also where this clock is behind the one that the mark was made by.
    """
    intended = f.EffectIntended(
        key=command.key,
        step=command.step,
        args_hash=command.args_hash,
        lineage=lineage_of(task),
        not_after=min(restored_at, now) + command.timeout,
        progress_by=progress_deadline(task, now, limits, command.timeout),
    )
    doubt = f.EffectDoubted(key=command.key, reason=answer.message)
    return Decision(facts=(intended, doubt), ledger=answer)


def _is_news(effect: Effect | None, task: Task) -> bool:
    """An unknown effect belongs to whoever asks for it now: that task goes on when it is settled."""
    return effect is not None and (effect.status == "intended" or effect.task_id != task.id)


def _found_done(
    task: Task, command: c.IntendEffect, answer: ledger.ReturnRecordedResult, now: int, limits: Limits
) -> Decision:
    """Done by another turn or task of the lineage: this step's record points to the same result."""
    content = msgspec.json.encode({"inputs": command.args_hash, "ref": answer.card})
    card = _record(task, command.step, content, fingerprint(content), now, "step.reference")
    recorded = f.StepRecorded(
        step=command.step,
        progress_by=progress_deadline(task, now, limits, over=command.step),
        result_type="side_effect_committed",
        card=card.id,
        card_hash=card.hash,
        card_kind=card.kind,
    )
    return Decision(facts=(recorded,), cards=(card,), ledger=answer)


def finish_effect(task: Task, command: c.FinishEffect, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Both phases in one commit: the effect's result under its key, and the step's record."""
    if not _is_ours(seen.effect, command.attempt_id):
        return refuse(_not_ours(task, command.key))
    card = _record(task, command.step, command.content, command.content_hash, now, _kind_of(command))
    done = f.EffectDone(key=command.key, card=card.id, card_hash=card.hash)
    recorded = f.StepRecorded(
        step=command.step,
        progress_by=progress_deadline(task, now, limits, over=command.step),
        result_type="side_effect_committed",
        card=card.id,
        card_hash=card.hash,
        took=command.took,
        card_kind=_told_kind(card),
    )
    return Decision(facts=(done, recorded), cards=(card,))


def doubt_effect(task: Task, command: c.DoubtEffect, now: int, limits: Limits, seen: Evidence) -> Decision:
    """Never a failure that may simply be tried again."""
    if not _is_ours(seen.effect, command.attempt_id):
        return refuse(_not_ours(task, command.key))
    return Decision(facts=(f.EffectDoubted(key=command.key, reason=command.reason),))


def settle_effect(task: Task, command: c.SettleEffect, now: int, limits: Limits, seen: Evidence) -> Decision:
    """The holder's `reconcile` may settle what is unknown, and so may a person."""
    effect = seen.effect
    if effect is None:
        return refuse(e.NotFound(f"there is no effect {command.key!r}", code="no_such_effect"))
    if effect.status not in ("unknown", "intended"):
        why = f"the effect {effect.key!r} is already {effect.status}"
        return refuse(e.WrongStatus(why, code="effect_settled", task_id=task.id))
    if effect.status == "intended" and not _may_settle_intent(effect, command, now, limits):
        return refuse(_in_flight(task, effect, limits))
    if command.attempt_id is not None:
        return _settled_by_attempt(task, command, now, limits, effect)
    return _settled_by_person(task, command, now, limits, effect)


def _may_settle_intent(effect: Effect, command: c.SettleEffect, now: int, limits: Limits) -> bool:
    """Its own attempt knows how its call ended; anybody else waits until its time is over.

    That it was done may be said earlier, if nobody is left who would say so.
    """
    is_own = command.attempt_id is not None and effect.attempt_id == command.attempt_id
    is_known = command.verdict == "done" or command.call_ended
    is_found_done = command.verdict == "done" and command.holder_gone
    is_over = now >= ledger.surely_over_at(effect, limits.effect_margin)
    return (is_own and is_known) or is_found_done or is_over or _is_forced(command)


def _is_forced(command: c.SettleEffect) -> bool:
    return command.force and command.attempt_id is None


def _in_flight(task: Task, effect: Effect, limits: Limits) -> e.WrongStatus:
    until = ledger.surely_over_at(effect, limits.effect_margin)
    return e.WrongStatus(
        f"a call of the effect {effect.key!r} may be in progress until {moment(until)}",
        code="effect_in_flight",
        task_id=task.id,
        hint="settle it after that moment; --force says it now, and the log keeps who did",
    )


def _settled_by_attempt(
    task: Task, command: c.SettleEffect, now: int, limits: Limits, effect: Effect
) -> Decision:
    if command.attempt_id != task.attempt_id:
        return refuse(_not_ours(task, command.key))
    is_own = effect.attempt_id == command.attempt_id
    time_is_over = now >= ledger.surely_over_at(effect, limits.effect_margin)
    may = ledger.may_run_again(
        same_attempt=is_own,
        call_ended=command.call_ended,
        time_is_over=time_is_over,
        holder_gone=command.holder_gone,
        may_repeat=command.may_repeat,
    )
    if command.verdict == "not_done" and not may and not time_is_over:
        return refuse(_in_flight(task, effect, limits))
    if command.verdict == "not_done" and not may:
        why = f"whoever began the effect {effect.key!r} may still be at it; a person must say"
        return refuse(e.WrongStatus(why, code=EFFECT_UNKNOWN, task_id=task.id))
    return _settled(task, command, now, effect.step)


def _settled_by_person(
    task: Task, command: c.SettleEffect, now: int, limits: Limits, effect: Effect
) -> Decision:
    """ "Not done" counts when the call's time is over and no worker reports it in progress, or by force."""
    may_run = command.is_running or now < ledger.surely_over_at(effect, limits.effect_margin)
    if command.verdict == "not_done" and may_run and not command.force:
        refusal = _still_running(task, effect) if command.is_running else _in_flight(task, effect, limits)
        return refuse(refusal)
    settled = _settled(task, command, now, None)
    if not is_held_for(task, command.key):
        return settled
    onward = unblock(task, now, limits, by=command.actor, run_at=now)
    return Decision(facts=(*settled.facts, *onward.facts), cards=settled.cards)


def _settled(task: Task, command: c.SettleEffect, now: int, step: str | None) -> Decision:
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


def _still_running(task: Task, effect: Effect) -> e.WrongStatus:
    return e.WrongStatus(
        f"a worker reports that a call of the effect {effect.key!r} is still in progress",
        code="effect_in_flight",
        task_id=task.id,
        hint="wait until it has ended; --force says it now, and the log keeps who did",
    )


def _is_ours(effect: Effect | None, attempt_id: str) -> bool:
    return effect is not None and effect.status == "intended" and effect.attempt_id == attempt_id


def _not_ours(task: Task, key: str) -> e.StaleAttempt:
    return e.StaleAttempt(f"the effect {key!r} is not in this attempt's hands", task_id=task.id)


def _record(
    task: Task, step: str, content: bytes, digest: str, now: int, kind: CardKind = "step.result"
) -> Card:
    return Card(task.namespace, record_id(task.id, step), task.id, kind, content, digest, now)
