"""Frees tasks that a person holds because of an unknown effect, once the effect is settled.

A person who settles an effect frees its tasks at once. Supervisors look now and then: an attempt may have
settled the effect, or the person's process died in between.
"""

from __future__ import annotations

from endwell.model.commands import Unblock
from endwell.store.actor import Actor

PAGE = 200


async def free_tasks_of_effect(actor: Actor, key: str) -> None:
    """Free the tasks that are held for this effect. Tasks held by earlier versions do not name theirs."""
    await _free_tasks(actor, {"": key, key: key})


async def free_tasks_of_settled_effects(actor: Actor) -> None:
    """Free the tasks that are held for any effect that is settled."""
    await _free_tasks(actor, None)


async def _free_tasks(actor: Actor, keys: dict[str, str] | None) -> None:
    """Unblock held tasks by the effects they name; it is refused where the task is no longer held for it."""
    after = ""
    while page := await actor.store.held_tasks(actor.namespace, after, PAGE):
        after = page[-1][0]
        by_named = await _settled_keys(actor, {key for _, key in page}) if keys is None else keys
        freed = [
            actor.command(Unblock, task_id=task_id, effect_key=by_named[key])
            for task_id, key in page
            if key in by_named
        ]
        if freed:
            await actor.commit(freed)


async def _settled_keys(actor: Actor, keys: set[str]) -> dict[str, str]:
    found = [await actor.store.effect(actor.namespace, key) for key in keys if key]
    return {effect.key: effect.key for effect in found if effect is not None and effect.is_settled}
