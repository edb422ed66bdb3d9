"""For `endwell dlq`: entries of a task stream that nobody could read, beside the dead letters of tasks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from endwell.app import Node
from endwell.errors import UsageError
from endwell.model.task import Task
from endwell.operate import dead_letters
from endwell.operate.questions import task_shape
from endwell.operate.unreadable_entries import KEY, UnreadableEntries
from endwell.streams.dead_letter_stream import DeadLetterStream
from endwell.streams.entries import is_entry_id
from endwell.streams.protocol import Names

MOST_AT_ONCE = 1000


@contextlib.asynccontextmanager
async def unreadables(node: Node) -> AsyncIterator[UnreadableEntries | None]:
    """Those of this installation; None where no stream carries its turns."""
    app = node.app
    if app.settings.queue.kind != "redis":
        yield None
        return

    async def submit(agent: str, payload: Any, key: str) -> Task:
        return await (await node.client.submit(agent, payload, key=key)).task()

    redis = app.open_redis()
    stream = DeadLetterStream(redis, Names.of(app.settings.redis.prefix, app.namespace))
    try:
        yield UnreadableEntries(stream, node.store, app.namespace, submit)
    finally:
        await redis.close()


class Replaying:
    """One replay of dead letters, of entries, or of both."""

    def __init__(
        self,
        node: Node,
        entries: UnreadableEntries | None,
        replacement: dead_letters.Replacement,
        agent: str | None,
    ) -> None:
        self._letters = dead_letters.DeadLetters(node.client.actions)
        self._entries = entries
        self._replacement = replacement
        self._agent = agent

    async def chosen(
        self, ids: tuple[str, ...], fingerprint: str | None, ask_before: Callable[[int], None]
    ) -> dict[str, Any]:
        """One gives its task; several, all of a kind, or all give a list, after `ask_before`."""
        if len(ids) == 1:
            return task_shape(await self._replay(ids[0]))
        wanted = list(ids)
        if not ids:
            wanted = await self._letters.open_ids(fingerprint)
            if self._entries is not None and fingerprint is not None:
                page = await self._entries.page(MOST_AT_ONCE, fingerprint)
                wanted += [entry["id"] for entry in page["entries"]]
            ask_before(len(wanted))
        return await dead_letters.replay_many(wanted, self._replay)

    async def _replay(self, word: str) -> Task:
        if self._entries is not None and is_entry_id(word):
            return await self._entries.replay(word, self._replacement, self._agent)
        if self._agent is not None:
            raise UsageError("a task's dead letter goes to the agent it was for", field="agent")
        return await self._letters.replay(word, self._replacement)


def replayed_id(task: dict[str, Any]) -> str:
    """What a new task stands for: a dead letter, or an entry, whose id is in its key."""
    return str(task["replay_of"] or task["idempotency_key"].removeprefix(KEY))
