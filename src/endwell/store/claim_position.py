"""How far claims have come in a long row of ready tasks, so that the next one begins there.

A task that was taken leaves its entry in the index of ready tasks until a vacuum clears it away. In a backlog
of a million, every claim would go over the entries of all tasks taken before. So the next claim begins behind
the last task of a claim that was filled. What lies before that (a task given back, or committed late) is
passed over for a moment: every `FROM_START_SECONDS` a claim looks from the start again.
"""

from __future__ import annotations

from endwell.runtime.clock import Clock
from endwell.store.reads.streams import START, QueuePosition

FROM_START_SECONDS = 1.0


class ClaimPosition:
    """The positions of this process's claims, by agent. Those of other processes do not matter."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._positions: dict[tuple[str, str], tuple[QueuePosition, float]] = {}

    def start_of(self, namespace: str, agent: str) -> QueuePosition:
        """Return where the next claim of an agent begins."""
        position, since = self._positions.get((namespace, agent), (START, 0.0))
        if position is START or self._clock.monotonic() - since <= FROM_START_SECONDS:
            return position
        del self._positions[namespace, agent]
        return START

    def advance(self, namespace: str, agent: str, position: QueuePosition | None) -> None:
        """Begin behind this position the next time; from the start if it is None."""
        if position is None:
            self._positions.pop((namespace, agent), None)
            return
        _, since = self._positions.get((namespace, agent), (START, self._clock.monotonic()))
        self._positions[namespace, agent] = (position, since)
