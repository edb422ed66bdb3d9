"""Checking what belongs to tasks beside rows and logs: the content of cards, and the rows of effects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

from endwell.errors import EndwellError
from endwell.machine.evolve import evolve
from endwell.machine.evolve_effect import EFFECT_FACTS, evolve_effect
from endwell.model import facts as f
from endwell.model.card import Card
from endwell.model.effect import Effect
from endwell.model.status import SUSPENDED
from endwell.model.task import Task, has_wait_rows, open_waits
from endwell.operate.naming import NamedPlace, is_answer, is_as_named, named_cards
from endwell.store.contract import Store
from endwell.store.log import Event, Problem
from endwell.store.side_rows import Key, RowsBeside, is_as_folded

CARDS = 50
"""Read at once; each may hold a megabyte."""
EFFECTS = 500
_LOOKS = 10
_END = "\U0010ffff"
_BESIDE = frozenset(fact.type for fact in (f.ApprovalRequested, f.TaskDeadLettered, f.TaskSuspended))
"""Events that add rows of approvals, dead letters or waits."""


async def tasks_with_odd_cards(
    store: Store, namespace: str, after: str, last: str | None, logs: Mapping[str, list[Event]]
) -> set[str]:
    """The tasks from behind one up to another whose cards are not what their logs name, at first sight.

    Without a last one, what lies behind all tasks.
    """
    named: dict[str, NamedPlace] = {}
    odd: set[str] = set()
    for task_id, events in logs.items():
        try:
            named |= named_cards(events)
        except EndwellError:
            odd.add(task_id)
    async for card in _cards(store, namespace, f"{after}/" if after else "", f"{last}/" if last else _END):
        if not _is_sound(card, named.pop(card.id, None)):
            odd.add(_owner(card))
    missing = {card_id for card_id, one in named.items() if not one.may_be_missing}
    return odd | {card_id.partition(".")[0] for card_id in missing}


async def _cards(store: Store, namespace: str, first: str, last: str) -> AsyncIterator[Card]:
    while page := await store.cards_page(namespace, first, last, CARDS):
        for card in page:
            yield card
        first = page[-1].id


def _owner(card: Card) -> str:
    """The task that a card says it belongs to, if its id says so as well."""
    return card.task_id if card.id.startswith(f"{card.task_id}.") else card.id.partition(".")[0]


def _is_sound(card: Card, named: NamedPlace | None) -> bool:
    is_own = card.id.startswith(f"{card.task_id}.")
    is_known = named is not None or is_answer(card.id, card.task_id, card.kind)
    return is_own and is_known and is_as_named(card, named)


def card_problems(task_id: str, events: list[Event], cards: Iterable[Card]) -> list[Problem]:
    """What is wrong with the cards of one task."""
    named, wrong = named_cards(events), list[Problem]()
    for card in cards:
        known = named.pop(card.id, None)
        if card.task_id != task_id or (known is None and not is_answer(card.id, task_id, card.kind)):
            wrong.append(Problem(task_id, 0, "card_unnamed", card.id))
        elif not is_as_named(card, known):
            wrong.append(Problem(task_id, known.version if known else 0, "content_changed", card.id))
    lost = ((card_id, one) for card_id, one in named.items() if not one.may_be_missing)
    return [*wrong, *(Problem(task_id, one.version, "content_missing", card_id) for card_id, one in lost)]


class SideRows(NamedTuple):
    """What a log comes to beside its task, and whether the task counts its open waits as they are."""

    rows: dict[Key, Any]
    is_counted: bool = True


def folded_beside(events: Iterable[Event]) -> SideRows:
    """The approvals, dead letters and waits that a log comes to. Most logs tell of none."""
    log = list(events)
    if not any(event.type in _BESIDE for event in log):
        return SideRows({})
    beside, task = RowsBeside(), None
    for event in log:
        fact, before = event.fact, task
        task = evolve(task, fact, event.at, namespace=event.namespace, task_id=event.task_id)
        beside.take(before, task, fact, event.at)
    return SideRows(beside.rows(), task is None or _counts_its_waits(task, beside))


def _counts_its_waits(task: Task, beside: RowsBeside) -> bool:
    """Whether a task whose waits are rows of their own says how many of them are open."""
    if task.status != SUSPENDED or not has_wait_rows(task):
        return True
    rows = beside.waits.get(task.turn_id or "", {}).values()
    return open_waits(task) == sum(row.wait_status == "waiting" for row in rows)


async def tasks_with_odd_rows(
    store: Store, namespace: str, after: str, last: str | None, logs: Mapping[str, list[Event]]
) -> set[str]:
    """The same for approvals, dead letters and waits."""
    folded: dict[Key, Any] = {}
    odd: set[str] = set()
    for task_id, events in logs.items():
        try:
            beside = folded_beside(events)
        except Exception:  # a log that cannot be folded is looked at again, alone, and said to be unreadable
            odd.add(task_id)
            continue
        folded |= beside.rows
        if not beside.is_counted:
            odd.add(task_id)
    first, before = f"{after}/" if after else "", f"{last}/" if last else _END
    async for key, row in store.rows_beside(namespace, first, before):
        if (expected := folded.pop(key, None)) is None or not is_as_folded(row, expected):
            odd.add(key[1].partition(".")[0])
    return odd | {key[1].partition(".")[0] for key in folded}


def row_problems(task_id: str, events: list[Event], rows: Iterable[tuple[Key, Any]]) -> list[Problem]:
    """What is wrong with the approvals, the dead letter and the waits of one task."""
    beside, wrong = folded_beside(events), list[Problem]()
    folded = beside.rows
    for key, row in rows:
        expected = folded.pop(key, None)
        if expected is None:
            wrong.append(Problem(task_id, 0, f"{key[0]}_unnamed", key[-1]))
        elif not is_as_folded(row, expected):
            wrong.append(Problem(task_id, 0, f"{key[0]}_differs", key[-1]))
    wrong += [Problem(task_id, 0, f"{key[0]}_missing", key[-1]) for key in folded]
    return wrong if beside.is_counted else [*wrong, Problem(task_id, 0, "waits_miscounted")]


class EffectRows:
    """The rows of effects against the logs that tell of them. Most effects are one task's own."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._matched = 0
        self._doubtful: dict[str, set[str]] = {}

    async def take(self, task_id: str, events: list[Event]) -> None:
        """Compare what one task's log says of effects; what other tasks have a part in is kept for later."""
        for key, effect in _folded_alone(events).items():
            row = await self._store.effect(self._namespace, key)
            if row is not None and row == effect and key not in self._doubtful:
                self._matched += 1
            else:
                self._doubtful.setdefault(key, set()).add(task_id)

    async def problems(self) -> list[Problem]:
        """What is wrong, now that all tasks were seen."""
        found = [await self._of_several(key, tasks) for key, tasks in self._doubtful.items()]
        wrong = [problem for problem in found if problem is not None]
        return wrong + await self._unnamed()

    async def _of_several(self, key: str, tasks: set[str]) -> Problem | None:
        for _ in range(_LOOKS):
            row = await self._store.effect(self._namespace, key)
            logs = [await self._placed(task_id) for task_id in sorted(tasks)]
            if row == await self._store.effect(self._namespace, key):
                task_id = row.task_id if row is not None else min(tasks)
                if row is None:
                    return Problem(task_id, 0, "effect_missing", key)
                is_same = row == _folded(logs).get(key)
                return None if is_same else Problem(task_id, 0, "effect_differs", key)
        return None  # an effect that moves this fast is being written by Endwell

    async def _placed(self, task_id: str) -> list[tuple[int, Event]]:
        """The log of a task, each event with its position. Times may run back from one task to another."""
        events = await self._store.events_of_task(self._namespace, task_id)
        positions = await self._store.positions_of_task(self._namespace, task_id)
        return [(positions[event.version], event) for event in events if event.version in positions]

    async def _unnamed(self) -> list[Problem]:
        """Rows of which no log tells: looked for only if there are more rows than logs tell of."""
        wrong, count, after = list[Problem](), 0, ""
        doubtful = self._doubtful.keys()
        while page := await self._store.effects_page(self._namespace, after=after, limit=EFFECTS):
            count += sum(row.key not in doubtful for row in page)
            after = page[-1].key
        if count == self._matched:
            return []
        after = ""
        while page := await self._store.effects_page(self._namespace, after=after, limit=EFFECTS):
            for row in page:
                if row.key not in doubtful and not await self._is_told_of(row):
                    wrong.append(Problem(row.task_id, 0, "effect_unnamed", row.key))
            after = page[-1].key
        return wrong

    async def _is_told_of(self, row: Effect) -> bool:
        events = await self._store.events_of_task(self._namespace, row.task_id)
        try:
            return row.key in _folded_alone(events)
        except Exception:  # a log that cannot be folded has a problem of its own
            return True


def _folded_alone(events: list[Event]) -> dict[str, Effect | None]:
    """The effects that a log tells of, as if no other task had a part in them; None: another must have."""
    return _folded([list(enumerate(events))])


def _folded(logs: list[list[tuple[int, Event]]]) -> dict[str, Effect | None]:
    """The effects that several logs come to together, in the order of the positions of their events."""
    told: list[tuple[int, Event, Task]] = []
    for events in logs:
        task: Task | None = None
        for position, event in events:
            fact = event.fact
            if isinstance(fact, EFFECT_FACTS) and task is not None:
                told.append((position, event, task))
            task = evolve(task, fact, event.at, namespace=event.namespace, task_id=event.task_id)
    effects: dict[str, Effect | None] = {}
    for _, event, before in sorted(told, key=lambda one: one[0]):
        fact = event.fact
        if isinstance(fact, EFFECT_FACTS):
            try:
                effects[fact.key] = evolve_effect(effects.get(fact.key), fact, before, event.at)
            except ValueError:
                effects.setdefault(fact.key, None)
    return effects
