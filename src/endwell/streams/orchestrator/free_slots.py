"""How much room live workers have for more offers on the stream."""

from __future__ import annotations

from collections.abc import Mapping

from endwell.store.reads.streams import StreamDemand

AHEAD_SLOTS = 8
"""Most offers for each slot that may be ahead on the stream: workers continue with them until more come."""


class FreeSlots:
    """The free slots of live workers. Workers that serve several agents have their slots once."""

    def __init__(
        self, found: StreamDemand | None = None, ahead: int = 0, early: Mapping[str, int] | None = None
    ) -> None:
        self._free: dict[str, int] = {}
        self._serving: dict[str, list[str]] = {}
        if found is None:
            return
        for worker in found.workers:
            share = min(ahead // len(found.workers), AHEAD_SLOTS * worker.slots)
            self._free[worker.session_id] = max(worker.slots + share - worker.held, 0)
            for agent in worker.agents:
                self._serving.setdefault(agent, []).append(worker.session_id)
        for counts in (found.dispatched, early or {}):
            for agent, count in counts.items():
                self.take(agent, count)

    def copy(self) -> FreeSlots:
        """The same room, to plan with."""
        other = FreeSlots()
        other._free, other._serving = dict(self._free), self._serving
        return other

    def for_agent(self, agent: str) -> int:
        """How many more offers of this agent have room."""
        return sum(self._free[session] for session in self._serving.get(agent, ()))

    def take(self, agent: str, count: int) -> None:
        """Give room away to offers of this agent."""
        for session in self._serving.get(agent, ()):
            taken = min(self._free[session], count)
            self._free[session] -= taken
            count -= taken
