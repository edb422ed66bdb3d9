"""Questions of an orchestrator whose turns a stream carries: what could be offered, and who could take it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import msgspec

from endwell.model.task import Task
from endwell.store.rows import Offer


class Serving(NamedTuple):
    """A live worker: what it serves, how many tasks it holds, how many it may."""

    session_id: str
    agents: tuple[str, ...]
    held: int
    slots: int


class Feeding(NamedTuple):
    """Agents with something ready, turns of each that are offered and not taken, and who could take more."""

    ready: list[str]
    offered: dict[str, int]
    workers: list[Serving]

    @classmethod
    def of(cls, ready: Sequence[str], rows: Iterable[Sequence[Any]]) -> Self:
        """These agents, and the rows of one question, each of which says what it is about."""
        found = cls(list(ready), {}, [])
        for what, name, serves, count, slots in rows:
            if what == "offered":
                found.offered[name] = count
            else:
                found.workers.append(Serving(name, tuple(serves.split()), count, slots))
        return found


class QueuePosition(NamedTuple):
    """Behind this task of an agent: the order in which ready tasks are taken."""

    priority: int | None
    run_at: int | None
    id: str | None


START = QueuePosition(None, None, None)


class ReadyTurn(msgspec.Struct, frozen=True, gc=False):
    """As much of a ready task as it takes to offer its next turn on a stream; `slots`: its agent's limit."""

    id: str
    agent: str
    agent_key: str | None
    idempotency_key: str
    parent_id: str | None
    turn_id: str | None
    turn_number: int
    epoch: int
    retry_count: int
    crash_count: int
    priority: int
    run_at: int
    slots: int | None
    content: bytes | None

    @property
    def payload(self) -> bytes:
        """What was asked; whoever takes a task whose card is gone finds out by its hash."""
        return self.content or b"null"

    @property
    def place(self) -> QueuePosition:
        """Where it stands in its agent's row."""
        return QueuePosition(self.priority, self.run_at, self.id)


class Carrying(ABC):
    """Each is one named query, or a few."""

    @abstractmethod
    async def _rows(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        """The rows of a named query."""

    @abstractmethod
    async def ready_turns(
        self, namespace: str, agent: str, limit: int, after: QueuePosition = START
    ) -> list[ReadyTurn]:
        """Ready tasks of an agent in the order in which they are to be taken, from behind a place on."""

    async def epochs_of_queued(self, namespace: str, ids: Sequence[str]) -> dict[str, int]:
        """Which of these tasks are queued, and in which epoch."""
        return {row[0]: row[1] for row in await self._rows("epochs_of_queued", namespace, list(ids))}

    async def feeding(self, namespace: str, now: int, ready: Sequence[str] | None = None) -> Feeding:
        """What could be offered, and who could take it. `ready`: the agents that have something, if known."""
        if ready is None:
            ready = [row[0] for row in await self._rows("ready_agents", namespace, now)]
        return Feeding.of(ready, await self._rows("serving", namespace, now))

    async def offered_counts(self, namespace: str) -> dict[str, int]:
        """How many turns of each agent are offered and not yet taken."""
        return {row[0]: row[1] for row in await self._rows("offered_counts", namespace)}

    async def offers_standing(self, namespace: str, agent: str, limit: int) -> list[Offer]:
        """Turns of an agent that are offered and not yet taken, most urgent first."""
        rows = await self._rows("offers_standing", namespace, agent, limit)
        return [Offer(Task(*row[:-1]), row[-1] or b"null") for row in rows]
