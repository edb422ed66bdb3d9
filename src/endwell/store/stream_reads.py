"""Questions of an orchestrator that publishes turns on a stream: which are ready, and who could take them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import msgspec

from endwell.model.task import Task
from endwell.store.rows import Offer


class ServingWorker(NamedTuple):
    """A live worker: what it serves, how many tasks it holds, how many it may hold."""

    session_id: str
    agents: tuple[str, ...]
    held: int
    slots: int


class StreamDemand(NamedTuple):
    """Agents with ready turns, how many of each are dispatched and not claimed, and the live workers."""

    ready: list[str]
    dispatched: dict[str, int]
    workers: list[ServingWorker]

    @classmethod
    def of(cls, ready: Sequence[str], rows: Iterable[Sequence[Any]]) -> Self:
        """Build from the agents with ready turns, and the rows of the `serving` query."""
        found = cls(list(ready), {}, [])
        for what, name, serves, count, slots in rows:
            if what == "dispatched":
                found.dispatched[name] = count
            else:
                found.workers.append(ServingWorker(name, tuple(serves.split()), count, slots))
        return found


class QueuePosition(NamedTuple):
    """A place behind a task, in the order in which ready tasks of an agent are taken."""

    priority: int | None
    run_at: int | None
    id: str | None


START = QueuePosition(None, None, None)


class ReadyTurn(msgspec.Struct, frozen=True, gc=False):
    """What an offer needs to know of a ready task; `slots`: the concurrency limit of its agent."""

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
        """The payload; if its card is gone, the worker that claims the task notices by the hash."""
        return self.content or b"null"

    @property
    def place(self) -> QueuePosition:
        """Its place among the ready tasks of its agent."""
        return QueuePosition(self.priority, self.run_at, self.id)


class StreamReads(ABC):
    """Each question is one named query, or a few."""

    @abstractmethod
    async def _rows(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        """The rows of a named query."""

    @abstractmethod
    async def ready_turns(
        self, namespace: str, agent: str, limit: int, after: QueuePosition = START
    ) -> list[ReadyTurn]:
        """Ready tasks of an agent behind a position, in the order in which they are taken."""

    async def epochs_of_queued(self, namespace: str, ids: Sequence[str]) -> dict[str, int]:
        """Which of these tasks are queued, and in which epoch."""
        return {row[0]: row[1] for row in await self._rows("epochs_of_queued", namespace, list(ids))}

    async def stream_demand(
        self, namespace: str, now: int, ready: Sequence[str] | None = None
    ) -> StreamDemand:
        """Which turns are ready, and who could take more. `ready`: the agents with ready turns, if known."""
        if ready is None:
            ready = [row[0] for row in await self._rows("ready_agents", namespace, now)]
        return StreamDemand.of(ready, await self._rows("serving", namespace, now))

    async def dispatched_offers(self, namespace: str, agent: str, limit: int) -> list[Offer]:
        """Turns of an agent that are dispatched and not claimed, most urgent first."""
        rows = await self._rows("dispatched_offers", namespace, agent, limit)
        return [Offer(Task(*row[:-1]), row[-1] or b"null") for row in rows]
