"""Unreadable entries of a task stream: shown with the reason, replayed as a new task, or abandoned.

The store has none of them, because no task was made of them; they are kept on `stream:dlq`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from endwell.errors import BadInput, NotFound, Refused, StoreError
from endwell.model import content
from endwell.model.task import Task
from endwell.operate.dead_letters import UNCHANGED, Replacement
from endwell.operate.repair import apply_edits
from endwell.redis_client import Refusal, Unreachable
from endwell.store.contract import Store
from endwell.streams.dead_letter_stream import DeadLetterStream, UnreadableEntry
from endwell.streams.protocol import TASK

T = TypeVar("T")
Submit = Callable[[str, Any, str], Awaitable[Task]]
"""Submits a task: agent, payload, idempotency key."""
KEY: Final = "dlq:"
"""Before an entry's id, this is the idempotency key of the task that replays it."""
_IN_LIST: Final = ("id", "tool_name", "reason", "error", "fingerprint", "failed_at", "stream", "message_id")


class UnreadableEntries:
    """What a person does with the unreadable entries of one installation."""

    def __init__(self, stream: DeadLetterStream, store: Store, namespace: str, submit: Submit) -> None:
        self._stream = stream
        self._store = store
        self._namespace = namespace
        self._submit = submit

    async def page(self, limit: int, fingerprint: str | None = None) -> dict[str, Any]:
        """The newest entries; when the server is away, the page says so instead of failing."""
        try:
            found = await self._stream.newest_unreadable(limit, fingerprint)
        except (Unreachable, Refusal) as error:
            return {"entries": [], "entries_error": f"stream:dlq cannot be read: {error}"}
        return {"entries": [{name: getattr(each, name) for name in _IN_LIST} for each in found]}

    async def read_entry(self, entry_id: str) -> dict[str, Any]:
        """One entry, with all that is known of it."""
        entry: dict[str, Any] = msgspec.to_builtins(await self._find(entry_id))
        return {**entry, "status": "unreadable"}

    async def replay(self, entry_id: str, replacement: Replacement, agent: str | None) -> Task:
        """Submit its work as a new task with the entry's id as key, so that two replays make one task."""
        entry = await self._find(entry_id)
        await self._refuse_if_pointless(entry)
        name = agent or entry.tool_name
        if not name:
            raise BadInput("the entry does not say which agent", hint="name it: --agent NAME", field="agent")
        payload = apply_edits(_payload(entry, replacement), replacement.edits)
        task = await self._submit(name, payload, f"{KEY}{entry.id}")
        await _answer_of(self._stream.remove_unreadable(entry_id))
        return task

    async def abandon(self, entry_id: str) -> dict[str, Any]:
        """Remove it for good."""
        entry = await self._find(entry_id)
        await _answer_of(self._stream.remove_unreadable(entry_id))
        return {"id": entry.id, "status": "abandoned", "reason": entry.reason}

    async def _refuse_if_pointless(self, entry: UnreadableEntry) -> None:
        """Refuse the report of a worker, and the copy of a task that the store has."""
        if entry.stream != TASK:
            raise Refused(
                "this is what a worker said about a turn, not something to be done",
                code="entry_is_no_order",
                hint=f"its turn ends by its own clocks; endwell dlq abandon {entry.id}",
            )
        if entry.task_id and await self._store.find_task(self._namespace, entry.task_id) is not None:
            raise Refused(
                f"the entry was a copy of task {entry.task_id}, which the store has",
                code="task_is_known",
                hint=f"endwell why {entry.task_id}; endwell dlq abandon {entry.id}",
                task_id=entry.task_id,
            )

    async def _find(self, entry_id: str) -> UnreadableEntry:
        entry = await _answer_of(self._stream.find_unreadable(entry_id))
        if entry is None:
            raise NotFound(f"there is no unreadable entry {entry_id} on stream:dlq", code="no_such_entry")
        return entry


async def _answer_of(asking: Awaitable[T]) -> T:
    """Wait for the server's answer; its failure is raised as an error of the store."""
    try:
        return await asking
    except (Unreachable, Refusal) as error:
        raise StoreError(f"stream:dlq cannot be read: {error}", code="queue_unreachable") from None


def _payload(entry: UnreadableEntry, replacement: Replacement = UNCHANGED) -> Any:
    if replacement.is_given:
        return replacement.payload
    if not entry.is_whole:
        raise BadInput(
            f"the payload of this entry could not be kept ({entry.reason})",
            code="payload_unknown",
            hint="give another one: --payload FILE",
            field="payload",
        )
    return content.decode(entry.payload, what="payload")
