"""Check the rows of effects against the logs of their tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator

from endwell.machine.evolve import evolve
from endwell.machine.evolve_rows import EFFECT_FACTS, evolve_effect
from endwell.model.effect import Effect
from endwell.model.task import Task
from endwell.store.contract import Store
from endwell.store.log import Event, Problem

PAGE = 500
LOOKS = 10
"""Times a row that changes between two readings is read again."""


class EffectCheck:
    """Takes the log of one task after another. Most effects belong to one task alone."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._matched = 0
        self._doubtful: dict[str, set[str]] = {}

    async def take(self, task_id: str, events: list[Event]) -> None:
        """Compare the effects of one task's log; `find_problems` compares those that other tasks share."""
        for key, effect in _folded_alone(events).items():
            row = await self._store.effect(self._namespace, key)
            if row is not None and row == effect and key not in self._doubtful:
                self._matched += 1
            else:
                self._doubtful.setdefault(key, set()).add(task_id)

    async def find_problems(self) -> list[Problem]:
        """What is wrong; asked after the last task."""
        found = [await self._compare_row(key, tasks) for key, tasks in self._doubtful.items()]
        wrong = [problem for problem in found if problem is not None]
        return wrong + await self._unnamed_rows()

    async def _compare_row(self, key: str, tasks: set[str]) -> Problem | None:
        """Compare a row with the logs of several tasks."""
        for _ in range(LOOKS):
            row = await self._store.effect(self._namespace, key)
            logs = [await self._placed_log(task_id) for task_id in sorted(tasks)]
            if row != await self._store.effect(self._namespace, key):
                continue
            if row is None:
                return Problem(min(tasks), 0, "effect_missing", key)
            is_same = row == _fold_effects(logs).get(key)
            return None if is_same else Problem(row.task_id, 0, "effect_differs", key)
        return None  # an effect that changes this fast is being written by Endwell

    async def _placed_log(self, task_id: str) -> list[tuple[int, Event]]:
        """A task's events with their positions. From one task to another, times may run back."""
        events = await self._store.events_of_task(self._namespace, task_id)
        positions = await self._store.positions_of_task(self._namespace, task_id)
        return [(positions[event.version], event) for event in events if event.version in positions]

    async def _unnamed_rows(self) -> list[Problem]:
        """Rows that no log tells of; searched only if there are more rows than logs tell of."""
        count = 0
        async for _ in self._other_rows():
            count += 1
        if count == self._matched:
            return []
        return [
            Problem(row.task_id, 0, "effect_unnamed", row.key)
            async for row in self._other_rows()
            if not await self._is_in_log(row)
        ]

    async def _other_rows(self) -> AsyncIterator[Effect]:
        """All rows but those of doubtful effects."""
        after = ""
        while page := await self._store.effects_page(self._namespace, after=after, limit=PAGE):
            for row in page:
                if row.key not in self._doubtful:
                    yield row
            after = page[-1].key

    async def _is_in_log(self, row: Effect) -> bool:
        events = await self._store.events_of_task(self._namespace, row.task_id)
        try:
            return row.key in _folded_alone(events)
        except Exception:  # a log that cannot be folded has a problem of its own
            return True


def _folded_alone(events: list[Event]) -> dict[str, Effect | None]:
    """The effects of one log; None for an effect that needs another task's log as well."""
    return _fold_effects([list(enumerate(events))])


def _fold_effects(logs: list[list[tuple[int, Event]]]) -> dict[str, Effect | None]:
    """The effects that several logs fold to together, in the order of their events' positions."""
    found: list[tuple[int, Event, Task]] = []
    for events in logs:
        task: Task | None = None
        for position, event in events:
            fact = event.fact
            if isinstance(fact, EFFECT_FACTS) and task is not None:
                found.append((position, event, task))
            task = evolve(task, fact, event.at, namespace=event.namespace, task_id=event.task_id)
    effects: dict[str, Effect | None] = {}
    for _, event, before in sorted(found, key=lambda one: one[0]):
        fact = event.fact
        if isinstance(fact, EFFECT_FACTS):
            try:
                effects[fact.key] = evolve_effect(effects.get(fact.key), fact, before, event.at)
            except ValueError:
                effects.setdefault(fact.key, None)
    return effects
