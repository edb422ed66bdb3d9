"""Actions of a person on tasks: cancel, retry, unblock, assign, replay, abandon. Each is one command."""

from __future__ import annotations

from typing import Any

from endwell.model import content, names
from endwell.model.commands import Abandon, Assign, Cancel, Replay, RunNow, TaskCommand, Unblock
from endwell.model.task import Task
from endwell.store.actor import Actor


class Actions:
    """Actions in the name of one person."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    async def cancel(self, task_id: str, reason: str = "cancelled") -> Task:
        """End a task now, in any status."""
        return await self._send(Cancel, task_id, reason=content.clean_text(reason, 200))

    async def retry(self, task_id: str) -> Task:
        """Start a waiting task now; ask for the work of an ended one again, as a new task."""
        task = await self.actor.store.task(self.actor.namespace, task_id)
        return await (self.replay(task_id) if task.is_ended else self._send(RunNow, task_id))

    async def unblock(self, task_id: str) -> Task:
        """Continue a blocked task; its deadline moves by the time it was held."""
        return await self._send(Unblock, task_id)

    async def assign(self, task_id: str, owner: str) -> Task:
        """Make another person responsible for the task; reminders go to that person."""
        return await self._send(Assign, task_id, owner=names.person_name(owner, "owner"))

    async def replay(self, task_id: str, payload: bytes | None = None) -> Task:
        """Ask for the work of an ended task again, with a repaired payload if given. Returns the new task."""
        task = await self.actor.store.task(self.actor.namespace, task_id)
        if payload is None:
            payload = (await self.actor.store.card(self.actor.namespace, task.payload_card)).content
        return await self._send(
            Replay,
            task_id,
            new_task_id=self.actor.new_id(),
            payload=payload,
            payload_hash=content.fingerprint(payload),
            deadline=max(task.ends_by - task.created_at, 1) if task.is_ended else 1,
        )

    async def abandon(self, task_id: str, note: str | None = None) -> Task:
        """Close a dead letter for good."""
        return await self._send(
            Abandon, task_id, note=None if note is None else content.clean_text(note, 500)
        )

    async def _send(self, kind: type[TaskCommand], task_id: str, **fields: Any) -> Task:
        return (await self.actor.send(kind, task_id=task_id, **fields)).unwrap()
