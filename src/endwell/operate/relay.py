"""The relay for operators: how far it has come, what holds it up, and what was left out."""

from __future__ import annotations

from typing import Any

from endwell.errors import NotFound
from endwell.model import content
from endwell.model.moments import SECOND, moment
from endwell.pmo.relay.service import CURSOR, relay_lag, skip_event, skipped_events
from endwell.store.actor import Actor
from endwell.store.contract import Store

PAGE = 500


async def status(store: Store, namespace: str) -> dict[str, Any]:
    """`trouble` is why the relay cannot send; None while it can."""
    cursor = await store.cursor(namespace, CURSOR)
    behind = await relay_lag(store, namespace, await store.now())
    skipped = await skipped_events(store, namespace)
    return {
        "namespace": namespace,
        "position": cursor.position if cursor else None,
        "holder": cursor.holder if cursor else None,
        "updated_at": moment(cursor.updated_at) if cursor else None,
        "lag_seconds": None if behind is None else behind / SECOND,
        "trouble": cursor.trouble if cursor else "no relay has run yet",
        "skipped": [
            {"event_id": event_id, "by": row.holder, "at": moment(row.updated_at)}
            for event_id, row in skipped.items()
        ],
    }


async def leave_out(actor: Actor, event_id: str) -> dict[str, Any]:
    """Leave out the messages of one event that was not sent yet, in a person's name."""
    await skip_event(actor, event_id, await _position_of_unsent(actor, event_id))
    return await status(actor.store, actor.namespace)


async def _position_of_unsent(actor: Actor, event_id: str) -> str:
    """The event's position in the log, which must lie after the relay's cursor."""
    cursor = await actor.store.cursor(actor.namespace, CURSOR)
    position = cursor.position if cursor else ""
    while page := await actor.store.events_after(actor.namespace, position, PAGE):
        for one in page:
            if one.event.event_id == event_id:
                return one.cursor
        position = page[-1].cursor
    raise NotFound(
        f"no event {content.printable_text(event_id)} is waiting to be sent",
        code="no_such_event",
        hint="`endwell relay status` names the event that the receiver refuses",
    )
