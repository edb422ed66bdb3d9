"""What facts do to rows beside the task: to an effect, and to a wait wherever it is kept. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from endwell.model import facts as f
from endwell.model.effect import Effect, EffectStatus
from endwell.model.task import Task
from endwell.model.wait import Wait

EffectFact = f.EffectIntended | f.EffectDone | f.EffectDoubted | f.EffectSettled
WaitFact = f.WaitAnswered | f.WaitExpired
EFFECT_FACTS: Final = (f.EffectIntended, f.EffectDone, f.EffectDoubted, f.EffectSettled)
_SETTLED: Final[dict[str, EffectStatus]] = {"done": "done", "not_done": "not_done", "abandon": "abandoned"}


def evolve_effect(effect: Effect | None, fact: EffectFact, task: Task, at: int) -> Effect:
    """The effect after the fact; `task` is the fact's task before it."""
    if isinstance(fact, f.EffectIntended):
        return _intended_effect(effect, fact, task, at)
    if effect is None:
        raise ValueError(f"{fact.type} of an effect that was never intended")
    if isinstance(fact, f.EffectDoubted) and fact.is_left_behind and not _is_own_intent(effect, task):
        return effect
    effect = replace(effect, version=effect.version + 1, updated_at=at)
    match fact:
        case f.EffectDone():
            return replace(effect, status="done", result_card=fact.card, result_hash=fact.card_hash)
        case f.EffectDoubted():
            owner = task.id if fact.adopts else effect.task_id
            return replace(effect, status="unknown", task_id=owner)
        case f.EffectSettled():
            return replace(
                effect,
                status=_SETTLED[fact.verdict],
                settled_by=fact.by,
                result_card=fact.card,
                result_hash=fact.card_hash,
            )


def _is_own_intent(effect: Effect, task: Task) -> bool:
    return effect.task_id == task.id and effect.status == "intended"


def _intended_effect(effect: Effect | None, fact: f.EffectIntended, task: Task, at: int) -> Effect:
    return Effect(
        namespace=task.namespace,
        key=fact.key,
        task_id=task.id,
        lineage=fact.lineage,
        step=fact.step,
        status="intended",
        args_hash=fact.args_hash,
        attempt_id=task.attempt_id,
        session_id=task.session_id,
        not_after=fact.not_after,
        result_card=None,
        result_hash=None,
        settled_by=None,
        version=1 if effect is None else effect.version + 1,
        created_at=at if effect is None else effect.created_at,
        updated_at=at,
    )


def settled_calls(fact: WaitFact) -> tuple[str, ...]:
    """The calls of the waits that the fact is about."""
    if isinstance(fact, f.WaitAnswered):
        return (fact.tool_call_id,)
    return (*fact.reported, *fact.skipped)


def evolve_wait(wait: Wait, fact: WaitFact) -> Wait:
    """The wait after a fact that is about it."""
    if isinstance(fact, f.WaitAnswered):
        return replace(wait, wait_status=fact.wait_status, result_card=fact.result_card)
    return replace(wait, is_reported=True)


def evolve_waits(waits: tuple[Wait, ...], fact: WaitFact) -> tuple[Wait, ...]:
    """All waits of a turn after a fact that is about some of them."""
    about = frozenset(settled_calls(fact))
    return tuple(evolve_wait(wait, fact) if wait.tool_call_id in about else wait for wait in waits)
