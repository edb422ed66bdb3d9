"""The relay as an operator sees it: how far it has come, what holds it up, and what was left out."""

from __future__ import annotations

from typing import Any

from endwell.errors import NotFound
from endwell.model import content, names
from endwell.model.moments import moment
from endwell.pmo.relay.service import CURSOR, lag
from endwell.pmo.relay.skips import skipping, skips
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.store.contract import Store

PAGE = 500


async def status(store: Store, namespace: str) -> dict[str, Any]:
    """`trouble` is why it does not get on, None while it does."""
    cursor = await store.cursor(namespace, CURSOR)
    behind = await lag(store, namespace, await store.now())
    left_out = await skips(store, namespace)
    return {
        "namespace": namespace,
        "position": cursor.position if cursor else None,
        "holder": cursor.holder if cursor else None,
        "updated_at": moment(cursor.updated_at) if cursor else None,
        "lag_seconds": None if behind is None else behind / SECOND,
        "trouble": cursor.trouble if cursor else "no relay has run yet",
        "skipped": [
            {"event_id": event_id, "by": row.holder, "at": moment(row.updated_at)}
            for event_id, row in left_out.items()
        ],
    }


async def skip(store: Store, runtime: Runtime, namespace: str, event_id: str, by: str) -> dict[str, Any]:
    """Have the messages of one untold event left out, in a person's name."""
    position = await _untold(store, namespace, event_id)
    about = {"command_id": runtime.ids.new(), "namespace": namespace, "by": names.person_name(by)}
    await store.one(skipping(event_id, position=position, **about))
    return await status(store, namespace)


async def _untold(store: Store, namespace: str, event_id: str) -> str:
    """Where it is in the log; what was told already cannot be left out any more."""
    cursor = await store.cursor(namespace, CURSOR)
    position = cursor.position if cursor else ""
    while page := await store.events_after(namespace, position, PAGE):
        for one in page:
            if one.event.event_id == event_id:
                return one.cursor
        position = page[-1].cursor
    raise NotFound(
        f"there is no event {content.shown(event_id)} that was not told yet",
        code="no_such_event",
        hint="`endwell relay status` names the one that is refused",
    )
