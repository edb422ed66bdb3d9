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
        """Where a claim of so many is to begin, for each of these agents."""
        if not self._places or limit < LEAST:
            return [START] * len(agents)
        return [self._place(namespace, agent) for agent in agents]

    def _place(self, namespace: str, agent: str) -> QueuePosition:
        place, since = self._places.get((namespace, agent), (START, 0.0))
        if place is START or self._clock.monotonic() - since <= FROM_START_SECONDS:
            return place
        del self._places[namespace, agent]
        return START

    def note(self, namespace: str, agent: str, found: Sequence[Task], limit: int) -> None:
        """What was offered of an agent to a claim of so many, in its order."""
        ready = [task for task in found if task.status == QUEUED]
        if limit < LEAST or len(ready) < limit:
            self._places.pop((namespace, agent), None)
            return
        last, key = ready[-1], (namespace, agent)
        since = self._places[key][1] if key in self._places else self._clock.monotonic()
        self._places[key] = QueuePosition(last.priority, last.run_at, last.id), since
