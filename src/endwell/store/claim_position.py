"""How far claims have come in a long row of ready tasks, so that the next begins there.

A task that was taken leaves its entry in the index of ready tasks until a vacuum clears it away. In a backlog
of a million every claim would go over the entries of all tasks taken before it. So where a claim was
filled, the next one begins behind its last task. What lies before that (a task that was given back, one that
was committed late) is overtaken for a moment: at least every `FROM_START_SECONDS`, and whenever there
is less than was asked for, a claim looks from the start again.
"""

from __future__ import annotations

from collections.abc import Sequence

from endwell.model.status import QUEUED
from endwell.model.task import Task
from endwell.runtime.clock import Clock
from endwell.store.stream_reads import START, QueuePosition

FROM_START_SECONDS = 1.0
LEAST = 16
"""Tasks that a claim must ask for to be remembered: small ones go by their exact order."""


class ClaimPosition:
    """The places of this process's claims; those of others do not matter, whose tasks are passed over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._places: dict[tuple[str, str], tuple[QueuePosition, float]] = {}

    def of(self, namespace: str, agents: Sequence[str], limit: int) -> list[QueuePosition]:
        """Where a claim of `limit` tasks begins, for each of these agents."""
        if not self._places or limit < LEAST:
            return [START] * len(agents)
        return [self.start_of(namespace, agent) for agent in agents]

    def note(self, namespace: str, agent: str, found: Sequence[Task], limit: int) -> None:
        """Record the tasks of an agent that were offered to a claim of `limit` tasks, in their order."""
        ready = [task for task in found if task.status == QUEUED]
        is_filled = limit >= LEAST and len(ready) >= limit
        last = ready[-1] if is_filled else None
        position = None if last is None else QueuePosition(last.priority, last.run_at, last.id)
        self.advance(namespace, agent, position)

    def start_of(self, namespace: str, agent: str) -> QueuePosition:
        """Where to begin in the row of an agent."""
        place, since = self._places.get((namespace, agent), (START, 0.0))
        if place is START or self._clock.monotonic() - since <= FROM_START_SECONDS:
            return place
        del self._places[namespace, agent]
        return START

    def advance(self, namespace: str, agent: str, position: QueuePosition | None) -> None:
        """Begin behind this position the next time, or from the start if it is None."""
        key = (namespace, agent)
        if position is None:
            self._places.pop(key, None)
        else:
            since = self._places[key][1] if key in self._places else self._clock.monotonic()
            self._places[key] = position, since
