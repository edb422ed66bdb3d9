"""Grants: which attempt of a foreign worker may execute a turn, as the server tells it.

A grant is removed as soon as its attempt no longer holds its turn, however that ended: by a report, a cancel,
a deadline, a guard, a reclaim. `grants` on the server lists every grant, so that an orchestrator also finds
those that another one gave.
"""

from __future__ import annotations

from endwell.machine.foreign_reports import is_grant_valid
from endwell.store.contract import Store
from endwell.streams.commands import Grant, StreamOrchestrator


class ForeignGrants:
    """`give`, `refuse`, and `sweep`, which removes every grant that is no longer valid."""

    def __init__(self, store: Store, stream: StreamOrchestrator, *, namespace: str) -> None:
        self._store = store
        self._stream = stream
        self._namespace = namespace

    async def give(self, task_id: str, turn_id: str, epoch: int, attempt_id: str) -> None:
        """Let this attempt begin, or continue."""
        await self._stream.grant(Grant(task_id=task_id, turn_id=turn_id, epoch=epoch), attempt_id)

    async def refuse(self, task_id: str, turn_id: str, epoch: int) -> None:
        """Tell the worker that asked that there is nothing to do; the grant of a live attempt stands."""
        await self.settle(task_id, turn_id, epoch)
        await self._stream.deny(turn_id, epoch)

    async def settle(self, task_id: str, turn_id: str, epoch: int) -> None:
        """Remove the grant of one turn, if its attempt no longer holds the turn."""
        await self._revoke_lost([Grant(task_id=task_id, turn_id=turn_id, epoch=epoch)])

    async def sweep(self) -> int:
        """Remove every grant whose attempt no longer holds its turn; how many."""
        return await self._revoke_lost(await self._stream.grants())

    async def _revoke_lost(self, grants: list[Grant]) -> int:
        if not grants:
            return 0
        attempts = await self._stream.granted(grants)
        ids = sorted({grant.task_id for grant in grants})
        tasks = {task.id: task for task in await self._store.tasks_by_ids(self._namespace, ids)}
        lost = [
            grant
            for grant, attempt in zip(grants, attempts, strict=True)
            if not is_grant_valid(tasks.get(grant.task_id), grant.turn_id, grant.epoch, attempt)
        ]
        await self._stream.revoke(lost)
        return len(lost)
