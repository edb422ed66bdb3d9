"""Approvals: who is asked what, and the one decision on it."""

from __future__ import annotations

from typing import Any

from endwell.errors import NotFound
from endwell.model import content
from endwell.model.approval import ApprovalRow
from endwell.model.commands import Approve, Reject
from endwell.model.moments import moment
from endwell.model.names import person_name
from endwell.operate.questions import no_such_place
from endwell.runtime.base import Runtime
from endwell.store.contract import Store


class Approvals:
    """Decisions of one named person in one namespace."""

    def __init__(self, store: Store, runtime: Runtime, *, namespace: str, actor: str) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._actor = person_name(actor)

    async def approve(self, approval_id: str, *, shown_hash: str | None = None) -> dict[str, Any]:
        """Agree. With `shown_hash`, only to exactly what was shown under it."""
        return await self._decided(approval_id, Approve, shown_hash=shown_hash)

    async def reject(self, approval_id: str) -> dict[str, Any]:
        """Decline."""
        return await self._decided(approval_id, Reject)

    async def _decided(
        self, approval_id: str, kind: type[Approve] | type[Reject], **about: Any
    ) -> dict[str, Any]:
        row = await self._store.approval(self._namespace, approval_id)
        await self._store.one(
            kind(
                command_id=self._runtime.ids.new(),
                namespace=self._namespace,
                actor=self._actor,
                task_id=row.task_id,
                approval_id=None if row.id == row.task_id else row.id,
                **about,
            )
        )
        return _shape(await self._store.approval(self._namespace, approval_id))


async def page(
    store: Store,
    namespace: str,
    *,
    everything: bool = False,
    task_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Open approvals; `everything` has decided ones too."""
    if cursor is not None:
        await _known_place(store, namespace, cursor)
    found = await store.approvals_page(
        namespace, only_open=not everything, task_id=task_id, after=cursor, limit=limit + 1
    )
    items = [_shape(row) for row in found[:limit]]
    return {"items": items, "next": found[limit - 1].id if len(found) > limit else None}


async def _known_place(store: Store, namespace: str, cursor: str) -> None:
    try:
        await store.approval(namespace, cursor)
    except NotFound:
        raise no_such_place() from None


async def whole(store: Store, namespace: str, approval_id: str) -> dict[str, Any]:
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
