"""Questions about tasks, and the cards and effects that belong to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from endwell.errors import NotFound
from endwell.model import content
from endwell.model.card import Card, draft_in
from endwell.model.effect import Effect
from endwell.model.inside import effect_it_is_held_for
from endwell.model.status import SUCCEEDED
from endwell.model.task import Task
from endwell.store.queries import NamedQueries
from endwell.store.rows import LITTLE_BYTES


class LapsedClaim(msgspec.Struct, frozen=True):
    """A running task whose holder's lease has lapsed."""

    task_id: str
    attempt_id: str
    session_id: str
    agent: str


class TaskReads(NamedQueries):
    """Tasks by id, key, age and deadline; cards; effects."""

    async def find_task(self, namespace: str, task_id: str) -> Task | None:
        return await self._read_first(Task, "task_by_id", namespace, task_id)

    async def task(self, namespace: str, task_id: str) -> Task:
        found = await self.find_task(namespace, task_id)
        if found is None:
            raise NotFound(f"there is no task {task_id}", code="no_such_task", task_id=task_id)
        return found

    async def task_by_key(self, namespace: str, key: str) -> Task | None:
        """The task that an idempotency key belongs to; a task's own id is its key by default."""
        found = await self._read_first(Task, "task_by_key", namespace, key)
        return found or await self.find_task(namespace, key)

    async def tasks_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Task]:
        """Many tasks at once, in no particular order; unknown ids are left out."""
        return await self._read_all(Task, "tasks_by_ids", namespace, list(ids))

    async def results_by_ids(self, namespace: str, ids: Sequence[str]) -> list[tuple[Task, bytes | None]]:
        """The same with their deliverables; None while the task lives, or where that is large."""
        rows = await self._rows("results_by_ids", namespace, list(ids), LITTLE_BYTES)
        return [(Task(*row[:-1]), row[-1]) for row in rows]

    async def tasks_page(
        self,
        namespace: str,
        *,
        status: str | None = None,
        agent: str | None = None,
        agent_key: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Task]:
        """The newest tasks first; `before` is the last id of the previous page."""
        return await self._read_all(Task, "tasks_page", namespace, status, agent, agent_key, before, limit)

    async def children(self, namespace: str, task_id: str) -> list[Task]:
        return await self._read_all(Task, "children", namespace, task_id)

    async def deliverable_of(self, task: Task, known: bytes | None = None) -> Any:
        """The result of an ended task, or its failure report with the draft it salvaged; None while it lives.

        `known` is the content of its card, where that has been read already.
        """
        if task.deliverable_card is None:
            return None
        value = await self._content(task, task.deliverable_card) if known is None else _decode(known)
        draft = None if task.status == SUCCEEDED else draft_in(value)
        return value if draft is None else {**value, "draft": await self._content(task, draft)}

    async def _content(self, task: Task, card_id: str) -> Any:
        return _decode((await self.card(task.namespace, card_id)).content)

    async def card(self, namespace: str, card_id: str) -> Card:
        found = await self._read_first(Card, "card", namespace, card_id)
        if found is None:
            raise NotFound(f"there is no card {card_id}", code="no_such_card")
        return found

    async def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]:
        """Many cards at once, in no particular order."""
        return await self._read_all(Card, "cards_by_ids", namespace, list(ids))

    async def cards_between(self, namespace: str, first: str, last: str) -> list[Card]:
        """The cards from one id up to another, which is not included."""
        return await self._read_all(Card, "cards_between", namespace, first, last)

    async def cards_page(self, namespace: str, after: str, before: str, limit: int) -> list[Card]:
        """The cards behind one id and before another, by id."""
        return await self._read_all(Card, "cards_page", namespace, after, before, limit)

    async def effect(self, namespace: str, key: str) -> Effect | None:
        return await self._read_first(Effect, "effect", namespace, key)

    async def effects_page(
        self,
        namespace: str,
        *,
        status: str | None = None,
        task_id: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[Effect]:
        """Effects by key; `after` is the last key of the previous page."""
        return await self._read_all(Effect, "effects_page", namespace, status, task_id, after, limit)

    async def due(
        self, namespace: str, now: int, after: tuple[int, str], limit: int
    ) -> list[tuple[str, int]]:
        """Tasks whose clock has passed, after (clock_at, id)."""
        rows = await self._rows("due", namespace, now, *after, limit)
        return [(row[0], row[1]) for row in rows]

    async def held_tasks(self, namespace: str, after: str, limit: int) -> list[tuple[str, str]]:
        """Tasks that a person holds because of an unknown effect, and its key where the task names it."""
        rows = await self._rows("held_tasks", namespace, after, limit)
        return [(row[0], effect_it_is_held_for(row[1])) for row in rows]

    async def expired_claims(self, namespace: str, now: int, limit: int) -> list[LapsedClaim]:
        """Running tasks whose holder's lease has lapsed; the only ground for a reclaim."""
        return await self._read_all(LapsedClaim, "expired_claims", namespace, now, limit)

    async def key_holder(self, namespace: str, agent: str, agent_key: str) -> str | None:
        """The task whose turn holds an agent key."""
        return await self._read_first(str, "key_holder", namespace, agent, agent_key)

    async def offered_count(self, namespace: str, agent: str) -> int:
        """How many turns of an agent are offered and not yet taken."""
        return int(await self._read_value("offered_count", namespace, agent))

    async def ready_since(self, namespace: str, agent: str, now: int) -> int | None:
        """Since when the oldest ready task of an agent has waited for a worker."""
        found = []
        for priority in await self._read_column("priorities", namespace, agent):
            since = await self._read_column("ready_since", namespace, agent, priority, now)
            found += [at for at in since if at is not None]
        return min(found, default=None)


def _decode(stored: bytes) -> Any:
    return content.decode_stored(stored)
