"""Approvals: what people are asked to agree to, and their decisions."""

from __future__ import annotations

from typing import Any

from endwell.errors import NotFound
from endwell.model import content
from endwell.model.approval import ApprovalRow
from endwell.model.commands import Approve, Reject
from endwell.model.moments import moment
from endwell.operate.pages import bad_cursor, page_of
from endwell.store.actor import Actor
from endwell.store.contract import Store


async def approve(actor: Actor, approval_id: str, *, shown_hash: str | None = None) -> dict[str, Any]:
    """Agree. With `shown_hash`, only if that is still the hash of what is shown."""
    return await _decide(actor, approval_id, Approve, shown_hash=shown_hash)


async def reject(actor: Actor, approval_id: str) -> dict[str, Any]:
    """Decline."""
    return await _decide(actor, approval_id, Reject)


async def _decide(
    actor: Actor, approval_id: str, kind: type[Approve] | type[Reject], **fields: Any
) -> dict[str, Any]:
    row = await actor.store.approval(actor.namespace, approval_id)
    inside_turn = None if row.id == row.task_id else row.id
    await actor.send(kind, task_id=row.task_id, approval_id=inside_turn, **fields)
    return _shape(await actor.store.approval(actor.namespace, approval_id))


async def page(
    store: Store,
    namespace: str,
    *,
    everything: bool = False,
    task_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Open approvals; with `everything` decided ones too."""
    if cursor is not None:
        try:
            await store.approval(namespace, cursor)
        except NotFound:
            raise bad_cursor() from None
    found = await store.approvals_page(
        namespace, only_open=not everything, task_id=task_id, after=cursor, limit=limit + 1
    )
    return page_of(found, limit, _shape, lambda row: row.id)


async def read_approval(store: Store, namespace: str, approval_id: str) -> dict[str, Any]:
    """One approval with exactly what is to be agreed to."""
    row = await store.approval(namespace, approval_id)
    shown = content.decode_stored((await store.card(namespace, row.shown_card)).content)
    is_question = row.id != row.task_id and isinstance(shown, dict)
    return {**_shape(row), "shown": shown["shown"] if is_question else shown}


def _shape(row: ApprovalRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "task_id": row.task_id,
        "question": row.question or None,
        "status": row.decision or "open",
        "by": row.approvers.split(",") if row.approvers else [],
        "quorum": row.quorum,
        "votes": row.votes.split(",") if row.votes else [],
        "shown_hash": row.shown_hash,
        "decided_by": row.decided_by,
        "decided_at": moment(row.decided_at),
        "remind_at": moment(row.remind_at),
        "expires_at": moment(row.expire_at),
        "created_at": moment(row.created_at),
    }
