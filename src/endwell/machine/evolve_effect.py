"""What each fact does to an effect's row. Pure; the row is the fold of the facts that name its key."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from endwell.model import facts as f
from endwell.model.effect import Effect, EffectStatus
from endwell.model.task import Task

EffectFact = f.EffectIntended | f.EffectDone | f.EffectDoubted | f.EffectSettled
EFFECT_FACTS: Final = (f.EffectIntended, f.EffectDone, f.EffectDoubted, f.EffectSettled)
_SETTLED: Final[dict[str, EffectStatus]] = {"done": "done", "not_done": "not_done", "abandon": "abandoned"}


def evolve_effect(effect: Effect | None, fact: EffectFact, task: Task, at: int) -> Effect:
    """The row after the fact; `task` is the one that it happened to, as it stood then."""
    if isinstance(fact, f.EffectIntended):
        return _intended(effect, fact, task, at)
    if effect is None:
        raise ValueError(f"{fact.type} of an effect that was never intended")
    if isinstance(fact, f.EffectDoubted) and fact.is_left_behind and not _is_still(effect, task):
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


def _is_still(effect: Effect, task: Task) -> bool:
    return effect.task_id == task.id and effect.status == "intended"


def _intended(effect: Effect | None, fact: f.EffectIntended, task: Task, at: int) -> Effect:
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
