"""The context: what agent code is given to speak with Endwell about the turn that it is in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Say = Callable[[str | None], Awaitable[None]]


class Context:
    """For `async def` agents. A `def` agent gets a `SyncContext` with the same verbs, without await."""

    def __init__(
        self,
        *,
        task_id: str,
        attempt_id: str,
        agent: str,
        agent_key: str | None,
        idempotency_key: str,
        retry_count: int,
        say: Say,
    ) -> None:
        self.task_id = task_id
        self.attempt_id = attempt_id
        self.agent = agent
        self.agent_key = agent_key
        self.idempotency_key = idempotency_key
        self.retry_count = retry_count
        self._say = say

    async def progress(self, note: str | None = None) -> None:
        """Say that the turn is getting somewhere; without a sign of progress it is reaped in the end.

        Raises `StaleAttempt` if the task has been given to somebody else: stop at once then.
        """
        await self._say(note)


class SyncContext(Context):
    """For `def` agents, which run in a thread."""

    def __init__(self, *, wait: Callable[[Awaitable[None]], None], **about: Any) -> None:
        super().__init__(**about)
        self._wait = wait

    def progress(self, note: str | None = None) -> None:  # type: ignore[override]  # the same verb, blocking
        """Say that the turn is getting somewhere."""
        self._wait(self._say(note))
