"""Grants: which attempt of a foreign worker may execute a turn.

A grant is revoked as soon as its attempt no longer holds its turn, whichever way that ended: by a report, a
cancel, a deadline, a guard, a reclaim. The server lists all grants, so that an orchestrator also finds those
that another one gave.
"""

from __future__ import annotations

from endwell.machine.foreign_reports import is_grant_valid
from endwell.store.contract import Store
from endwell.streams.foreign_keys import Grant, GrantKeys


class ForeignGrants:
    """Revokes grants whose attempts have lost their turns, as the store says."""

    def __init__(self, store: Store, keys: GrantKeys, *, namespace: str) -> None:
        self._store = store
        self._keys = keys
        self._namespace = namespace

    async def refuse(self, grant: Grant) -> None:
        """Tell the worker that asked that there is nothing to do; the grant of a live attempt stands."""
        await self.revoke_lost([grant])
        await self._keys.deny(grant)

    async def revoke_all_lost(self) -> int:
        """Revoke every grant whose attempt has lost its turn; how many."""
        return await self.revoke_lost(await self._keys.all_listed())

    async def revoke_lost(self, grants: list[Grant]) -> int:
        """Revoke those of these grants whose attempts have lost their turns; how many."""
        if not grants:
            return 0
        attempts = await self._keys.attempts_of(grants)
        ids = sorted({grant.task_id for grant in grants})
        tasks = {task.id: task for task in await self._store.tasks_by_ids(self._namespace, ids)}
        lost = [
            grant
            for grant, attempt in zip(grants, attempts, strict=True)
            if not is_grant_valid(tasks.get(grant.task_id), grant.turn_id, grant.epoch, attempt)
        ]
        await self._keys.revoke(lost)
        return len(lost)
