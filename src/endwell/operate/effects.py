"""Effects: what was changed outside, and a person's word on those of which nobody knows."""

from __future__ import annotations

from typing import Any

from endwell.errors import NotFound
from endwell.model import content, facts
from endwell.model.commands import SettleEffect
from endwell.model.effect import Effect, Verdict
from endwell.model.moments import moment
from endwell.model.names import person_name
from endwell.model.session import doing_of
from endwell.operate.questions import no_such_place
from endwell.runtime.base import Runtime
from endwell.store.contract import Store
from endwell.store.held_tasks import HeldTasks


class Effects:
    """What one named person says of effects in one namespace."""

    def __init__(self, store: Store, runtime: Runtime, *, namespace: str, actor: str) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._actor = person_name(actor)

    async def settle(
        self, key: str, verdict: Verdict, result: Any = None, *, force: bool = False
    ) -> dict[str, Any]:
        """Say what became of an unknown effect: done (with its result), not done, or never mind.

        "Not done" while a call of it may be in progress needs `force`, which its event keeps.
        """
        effect = await _known(self._store, self._namespace, key)
        encoded = content.encode(result, what="result")
        await self._store.one(
            SettleEffect(
                command_id=self._runtime.ids.new(),
                namespace=self._namespace,
                actor=self._actor,
                task_id=effect.task_id,
                key=key,
                verdict=verdict,
                content=encoded,
                content_hash=content.fingerprint(encoded),
                is_running=await self._is_running(effect),
                force=force,
            )
        )
        await HeldTasks(self._store, self._runtime, namespace=self._namespace, actor=self._actor).of_effect(
            key
        )
        return _shape(await _known(self._store, self._namespace, key))

    async def _is_running(self, effect: Effect) -> bool:
        """Whether a live session names the call, or its worker's process lives without a session that would.

        A worker that lost its lease names under its next session the calls that it began under the last one.
        """
        now = await self._store.now()
        opened = await self._store.open_sessions(self._namespace)
        live = [session for session in opened if session.lease_until > now]
        named = {(one.attempt_id, one.step) for session in live for one in doing_of(session)}
        if (effect.attempt_id, effect.step) in named:
            return True
        own = await self._store.session(self._namespace, effect.session_id) if effect.session_id else None
        if own is None or own.end_reason == "goodbye" or own.host != self._runtime.host():
            return False
        is_told = any((session.pid, session.process) == (own.pid, own.process) for session in live)
        return not is_told and self._runtime.is_same_process(own.pid, own.process) is True


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
        raise no_such_place()
    found = await store.effects_page(namespace, status=status, task_id=task_id, after=cursor, limit=limit + 1)
    items = [_shape(effect) for effect in found[:limit]]
    return {"items": items, "next": found[limit - 1].key if len(found) > limit else None}


async def whole(store: Store, namespace: str, key: str) -> dict[str, Any]:
    """One effect with its result, and why nobody knew of it where that was so."""
    effect = await _known(store, namespace, key)
    result = None
    if effect.result_card is not None:
        card = await store.card(namespace, effect.result_card)
        result = content.decode_stored(card.content)
        if card.kind == "step.checked":
            result = result["value"]
    return {**_shape(effect), "doubt": await _doubt(store, effect), "result": result}


async def _doubt(store: Store, effect: Effect) -> str | None:
    """What the log last said about why nobody can tell: whoever is asked wants to know that."""
    events = await store.events_of_task(effect.namespace, effect.task_id)
    doubts = [
        facts.decode(event.type, event.schema, event.data)
        for event in events
        if event.type == facts.EffectDoubted.type
    ]
    return next((doubt.reason for doubt in reversed(doubts) if doubt.key == effect.key), None)


async def _known(store: Store, namespace: str, key: str) -> Effect:
    effect = await store.effect(namespace, key)
    if effect is None:
        raise NotFound(f"there is no effect {content.shown(key)!r}", code="no_such_effect")
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
