"""How much room live workers have for more turns on the stream."""

from __future__ import annotations

from collections.abc import Mapping

from endwell.store.stream_reads import Feeding

AHEAD_SLOTS = 8
"""For each slot so many turns at most may lie on the stream: workers go on with them until more come."""


class FreeSlots:
    """The free slots of live workers. One that serves several agents has its slots once, not for each."""

    def __init__(
        self, found: Feeding | None = None, ahead: int = 0, announced: Mapping[str, int] | None = None
    ) -> None:
        self._free: dict[str, int] = {}
        self._serving: dict[str, list[str]] = {}
        if found is None:
            return
        for each in found.workers:
            share = min(ahead // len(found.workers), AHEAD_SLOTS * each.slots)
            self._free[each.session_id] = max(each.slots + share - each.held, 0)
            for agent in each.agents:
                self._serving.setdefault(agent, []).append(each.session_id)
        for counts in (found.offered, announced or {}):
            for agent, count in counts.items():
                self.take(agent, count)

    def copy(self) -> FreeSlots:
        """The same room, to try something out."""
        other = FreeSlots()
        other._free, other._serving = dict(self._free), self._serving
        return other

    def for_agent(self, agent: str) -> int:
        return sum(self._free[session] for session in self._serving.get(agent, ()))

    def take(self, agent: str, count: int) -> None:
        for session in self._serving.get(agent, ()):
            taken = min(self._free[session], count)
            self._free[session] -= taken
            count -= taken
