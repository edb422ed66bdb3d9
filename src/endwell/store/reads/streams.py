"""Questions of an orchestrator that publishes turns on a stream: which are ready, and who could take them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from endwell.model.task import Task
from endwell.store.queries import NamedQueries
from endwell.store.rows import Offer


class ServingWorker(NamedTuple):
    """A worker with a lease: its agents, how many tasks it holds, and how many it may hold."""

    session_id: str
    agents: tuple[str, ...]
    held: int
    slots: int


class StreamDemand(NamedTuple):
    """Agents with ready turns, how many of each are dispatched and not claimed, and the live workers."""

    ready: list[str]
    dispatched: dict[str, int]
    workers: list[ServingWorker]


class QueuePosition(NamedTuple):
    """A place among the ready tasks of an agent, behind this task, in the order in which they are taken."""

    priority: int | None
    run_at: int | None
    id: str | None


START = QueuePosition(None, None, None)


class ReadyTurn(msgspec.Struct, frozen=True, gc=False):
    """The fields of a ready task that its next offer on a stream needs; `slots` is its agent's limit."""

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
        """The task's payload; a worker notices by its hash that the card is gone."""
        return self.content or b"null"

    @property
    def position(self) -> QueuePosition:
        """Its place among the ready tasks of its agent."""
        return QueuePosition(self.priority, self.run_at, self.id)


class StreamReads(NamedQueries):
    """Turns that could be offered, and those that are."""

    @abstractmethod
    async def ready_turns(
        self, namespace: str, agent: str, limit: int, after: QueuePosition = START
    ) -> list[ReadyTurn]:
        """Ready tasks of an agent behind a position, in the order in which they are taken."""

    async def epochs_of_queued(self, namespace: str, ids: Sequence[str]) -> dict[str, int]:
        """Which of these tasks are queued, and in which epoch."""
        return await self._read_pairs("epochs_of_queued", namespace, list(ids))

    async def stream_demand(
        self, namespace: str, now: int, ready: Sequence[str] | None = None
    ) -> StreamDemand:
        """What could be offered, and which workers could take it; `ready`: the agents, if known."""
        if ready is None:
            ready = await self._read_column("ready_agents", namespace, now)
        found = StreamDemand(list(ready), {}, [])
        for what, name, agents, count, slots in await self._rows("serving", namespace, now):
            if what == "dispatched":
                found.dispatched[name] = count
            else:
                found.workers.append(ServingWorker(name, tuple(agents.split()), count, slots))
        return found

    async def dispatched_offers(self, namespace: str, agent: str, limit: int) -> list[Offer]:
        """Turns of an agent that are dispatched and not claimed, most urgent first."""
        rows = await self._rows("dispatched_offers", namespace, agent, limit)
        return [Offer(Task(*row[:-1]), row[-1] or b"null") for row in rows]
