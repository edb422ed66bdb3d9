"""What people do to tasks: cancel, retry, unblock, assign, replay, abandon. Each is one command."""

from __future__ import annotations

from typing import Any

from endwell.model import content, names
from endwell.model import status as s
from endwell.model.commands import Abandon, Assign, Cancel, Replay, RunNow, TaskCommand, Unblock
from endwell.model.task import Task
from endwell.runtime.base import Runtime
from endwell.store.contract import Store


class Actions:
    """Actions of one named person in one namespace."""

    def __init__(self, store: Store, runtime: Runtime, *, namespace: str, actor: str) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._actor = actor

    async def cancel(self, task_id: str, reason: str = "cancelled") -> Task:
        """End a task now, whatever it is doing."""
        command = Cancel(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_id,
            reason=content.clean_text(reason, 200),
        )
        return (await self._store.one(command)).unwrap()

    async def retry(self, task_id: str) -> Task:
        """A waiting task starts now; an ended one is asked for again as a new task."""
        task = await self._store.task(self._namespace, task_id)
        if task.is_ended:
            return await self.replay(task_id)
        command = RunNow(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_id,
        )
        return (await self._store.one(command)).unwrap()

    async def unblock(self, task_id: str) -> Task:
        """Let a blocked task go on; the time it was held is given back to it."""
        return await self._told(Unblock, task_id)

    async def assign(self, task_id: str, owner: str) -> Task:
        """Name another person who answers for the task and is reminded of it."""
        return await self._told(Assign, task_id, owner=names.person_name(owner, "owner"))

    async def _told(self, kind: type[TaskCommand], task_id: str, **about: Any) -> Task:
        command = kind(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_id,
            **about,
        )
        return (await self._store.one(command)).unwrap()

    async def replay(self, task_id: str, payload: bytes | None = None) -> Task:
        """Ask again for an ended task's work, with a repaired payload if given. Returns the new task."""
        task = await self._store.task(self._namespace, task_id)
        if payload is None:
            payload = (await self._store.card(self._namespace, task.payload_card)).content
        command = Replay(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_id,
            new_task_id=self._runtime.ids.new(),
            payload=payload,
            payload_hash=content.fingerprint(payload),
            deadline=_asked_deadline(task),
        )
        return (await self._store.one(command)).unwrap()

    async def abandon(self, task_id: str, note: str | None = None) -> Task:
        """Close a dead letter for good."""
        command = Abandon(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_id,
            note=None if note is None else content.clean_text(note, 500),
        )
        return (await self._store.one(command)).unwrap()


def _asked_deadline(task: Task) -> int:
    """As long again as the first time."""
    return max(task.ends_by - task.created_at, 1) if task.status in s.TERMINAL else 1
