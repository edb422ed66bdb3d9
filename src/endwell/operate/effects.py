"""Effects: what was changed outside, and a person's verdict on effects whose outcome is unknown."""

from __future__ import annotations

from typing import Any

from endwell.errors import NotFound
from endwell.model import content, facts
from endwell.model.commands import SettleEffect
from endwell.model.effect import Effect, Verdict
from endwell.model.moments import moment
from endwell.model.session import doing_of
from endwell.operate.pages import bad_cursor, page_of
from endwell.pmo.held_tasks import free_tasks_of_effect
from endwell.runtime.base import Runtime
from endwell.store.actor import Actor
from endwell.store.contract import Store


async def settle(
    actor: Actor, runtime: Runtime, key: str, verdict: Verdict, result: Any = None, *, force: bool = False
) -> dict[str, Any]:
    """Record the outcome of an unknown effect: done (with its result), not done, or abandon.

    "Not done" while a call of it may be in progress needs `force`, which its event keeps.
    """
    effect = await _find(actor.store, actor.namespace, key)
    encoded = content.encode(result, what="result")
    await actor.send(
        SettleEffect,
        task_id=effect.task_id,
        key=key,
        verdict=verdict,
        content=encoded,
        content_hash=content.fingerprint(encoded),
        is_running=await _is_running(actor, runtime, effect),
        force=force,
    )
    await free_tasks_of_effect(actor, key)
    return _shape(await _find(actor.store, actor.namespace, key))


async def _is_running(actor: Actor, runtime: Runtime, effect: Effect) -> bool:
    """Whether a live session names the call, or its worker's process lives without a session that would.

    A worker that lost its lease names under its next session the calls that it began under the last one.
    """
    store, namespace = actor.store, actor.namespace
    now = await store.now()
    live = [session for session in await store.open_sessions(namespace) if session.lease_until > now]
    named = {(doing.attempt_id, doing.step) for session in live for doing in doing_of(session)}
    if (effect.attempt_id, effect.step) in named:
        return True
    own = await store.session(namespace, effect.session_id) if effect.session_id else None
    if own is None or own.end_reason == "goodbye" or own.host != runtime.host_name():
        return False
    has_next = any((session.pid, session.process) == (own.pid, own.process) for session in live)
    return not has_next and runtime.is_same_process(own.pid, own.process) is True


async def page(
    store: Store,
    namespace: str,
    *,
    status: str | None = None,
    task_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Effects by key."""
    if cursor is not None and await store.effect(namespace, cursor) is None:
        raise bad_cursor()
    found = await store.effects_page(namespace, status=status, task_id=task_id, after=cursor, limit=limit + 1)
    return page_of(found, limit, _shape, lambda effect: effect.key)


async def read_effect(store: Store, namespace: str, key: str) -> dict[str, Any]:
    """One effect with its result, and why its outcome was unknown if it was."""
    effect = await _find(store, namespace, key)
    result = None
    if effect.result_card is not None:
        card = await store.card(namespace, effect.result_card)
        result = content.decode_stored(card.content)
        if card.kind == "step.checked":
            result = result["value"]
    return {**_shape(effect), "doubt": await _last_doubt(store, effect), "result": result}


async def _last_doubt(store: Store, effect: Effect) -> str | None:
    """Why the outcome was last unknown, by the log."""
    events = await store.events_of_task(effect.namespace, effect.task_id)
    doubts = [
        facts.decode(event.type, event.schema, event.data)
        for event in events
        if event.type == facts.EffectDoubted.type
    ]
    return next((doubt.reason for doubt in reversed(doubts) if doubt.key == effect.key), None)


async def _find(store: Store, namespace: str, key: str) -> Effect:
    effect = await store.effect(namespace, key)
    if effect is None:
        raise NotFound(f"no effect has the key {content.printable_text(key)!r}", code="no_such_effect")
    return effect


def _shape(effect: Effect) -> dict[str, Any]:
    return {
        "key": effect.key,
        "task_id": effect.task_id,
        "step": effect.step,
        "status": effect.status,
        "attempt_id": effect.attempt_id,
        "not_after": moment(effect.not_after),
        "settled_by": effect.settled_by,
        "created_at": moment(effect.created_at),
        "updated_at": moment(effect.updated_at),
    }
