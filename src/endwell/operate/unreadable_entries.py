"""Entries of a task stream that nobody could read: shown with their reason, asked for anew, or thrown away.

No store has them, because no task was ever made of them; they are kept on `stream:dlq`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from endwell.errors import BadInput, NotFound, Refused, StoreError
from endwell.model import content
from endwell.model.task import Task
from endwell.operate.dead_letters import UNCHANGED, Replacement
from endwell.operate.repair import edited
from endwell.redis_client import Refusal, Unreachable
from endwell.store.contract import Store
from endwell.streams.protocol import TASK
from endwell.streams.unreadable import Unreadable, UnreadableEntries

T = TypeVar("T")
Submit = Callable[[str, Any, str], Awaitable[Task]]
"""Ask an agent for something under an idempotency key."""
KEY: Final = "dlq:"
"""Before an entry's id, it is the key of the task that is made of it."""
_IN_LIST: Final = ("id", "tool_name", "reason", "error", "fingerprint", "failed_at", "stream", "message_id")


class Unreadables:
    """What a person does to them."""

    def __init__(self, entries: UnreadableEntries, store: Store, namespace: str, submit: Submit) -> None:
        self._entries = entries
        self._store = store
        self._namespace = namespace
        self._submit = submit

    async def page(self, limit: int, fingerprint: str | None = None) -> dict[str, Any]:
        """The newest ones; a server that is away hides them, which is said and stops nobody."""
        try:
            found = await self._entries.newest(limit, fingerprint)
        except (Unreachable, Refusal) as error:
            return {"entries": [], "entries_error": f"stream:dlq cannot be read: {error}"}
        return {"entries": [{name: getattr(each, name) for name in _IN_LIST} for each in found]}

    async def whole(self, entry_id: str) -> dict[str, Any]:
        """One of them, with all that is known of it."""
        entry: dict[str, Any] = msgspec.to_builtins(await self._find(entry_id))
        return {**entry, "status": "unreadable"}

    async def replay(self, entry_id: str, replacement: Replacement, agent: str | None) -> Task:
        """Ask for its work as a new task, whose key is the entry's: asked twice at once, it is one task."""
        entry = await self._find(entry_id)
        await self._refuse_hopeless(entry)
        name = agent or entry.tool_name
        if not name:
            raise BadInput("the entry does not say which agent", hint="name it: --agent NAME", field="agent")
        payload = edited(_payload(entry, replacement), replacement.edits)
        task = await self._submit(name, payload, f"{KEY}{entry.id}")
        await self._asked(self._entries.remove(entry_id))
        return task

    async def abandon(self, entry_id: str) -> dict[str, Any]:
        """Throw it away for good."""
        entry = await self._find(entry_id)
        await self._asked(self._entries.remove(entry_id))
        return {"id": entry.id, "status": "abandoned", "reason": entry.reason}

    async def _refuse_hopeless(self, entry: Unreadable) -> None:
        """Of a task that the store has, the entry was only a copy; what a worker said is no order."""
        if entry.stream != TASK:
            raise Refused(
                "this is what a worker said about a turn, not something to be done",
                code="entry_is_no_order",
                hint=f"its turn ends by its own clocks; endwell dlq abandon {entry.id}",
            )
        if entry.task_id and await self._store.find_task(self._namespace, entry.task_id) is not None:
            raise Refused(
                f"the entry was a copy of task {entry.task_id}, which goes its own way",
                code="task_is_known",
                hint=f"endwell why {entry.task_id}; endwell dlq abandon {entry.id}",
                task_id=entry.task_id,
            )

    async def _find(self, entry_id: str) -> Unreadable:
        entry = await self._asked(self._entries.find(entry_id))
        if entry is None:
            raise NotFound(f"there is no unreadable entry {entry_id} on stream:dlq", code="no_such_entry")
        return entry

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except (Unreachable, Refusal) as error:
            raise StoreError(f"stream:dlq cannot be read: {error}", code="queue_unreachable") from None


def _payload(entry: Unreadable, replacement: Replacement = UNCHANGED) -> Any:
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
