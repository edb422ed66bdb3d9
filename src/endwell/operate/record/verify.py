"""Verify: is every task's record whole? Reads pages of tasks, then each task that looks wrong again, alone.

A task may change between two readings of a page, so a problem counts only if it is found in a record that
did not change while it was read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from msgspec.structs import asdict

from endwell.model.card import Card
from endwell.operate.record.effect_check import EffectCheck
from endwell.operate.record.task_check import CardDigest, TaskRecord, problems_of
from endwell.store.contract import Store
from endwell.store.log import Problem

PAGE = 500
CARDS = 50
"""Cards read at once; each may hold a megabyte."""
PROGRESS_EVERY = 50_000
MOST_PROBLEMS = 10_000
"""Problems that are listed; further ones are only counted."""
COUNT_DIFFERS = "count_differs"
"""The problem of a namespace that has other tasks than its commits counted."""
LOOKS = 10
"""Times a task that changes while it is read is read again."""
_END = "\U0010ffff"

Progress = Callable[[int], None]


async def verify(
    store: Store, namespaces: Iterable[str], progress: Progress = lambda count: None
) -> dict[str, Any]:
    """Check all tasks of these namespaces; `progress` gets the count of checked tasks now and then."""
    checked, problems, found = 0, list[Problem](), 0
    for namespace in namespaces:
        async for count, wrong in _check_namespace(store, namespace):
            problems += wrong[: MOST_PROBLEMS - len(problems)]
            found += len(wrong)
            before, checked = checked, checked + count
            if checked // PROGRESS_EVERY > before // PROGRESS_EVERY:
                progress(checked)
    return {
        "ok": not found,
        "checked": checked,
        "found": found,
        "problems": [asdict(one) for one in problems],
    }


async def _check_namespace(store: Store, namespace: str) -> AsyncIterator[tuple[int, list[Problem]]]:
    """For each page, its number of tasks and their problems; at last those of the namespace as a whole."""
    after, effects, is_whole = "", EffectCheck(store, namespace), True
    while ids := await _next_ids(store, namespace, after):
        wrong = await _check_tasks(store, namespace, ids, after, effects)
        misplaced = await store.events_out_of_order(namespace, ids[0], ids[-1])
        wrong += [Problem(task_id, version, "out_of_order") for task_id, version in misplaced]
        is_whole = is_whole and not wrong
        yield len(ids), wrong
        after = ids[-1]
    wrong = await _check_tasks(store, namespace, [], after, effects)
    wrong += await effects.find_problems()
    yield 0, wrong
    if is_whole and not wrong and not (await store.count_conservation(namespace)).is_conserved:
        yield 0, [Problem("", 0, COUNT_DIFFERS)]


async def _next_ids(store: Store, namespace: str, after: str) -> list[str]:
    """The next tasks that have a row, events, or both. Each source is trusted as far as it was read."""
    rows = [head[0] for head in await store.heads_of_tasks(namespace, after, PAGE)]
    logged = await store.event_tasks(namespace, after, PAGE)
    read_to = [source[-1] for source in (rows, logged) if len(source) == PAGE]
    both = sorted({*rows, *logged})
    return [task_id for task_id in both if not read_to or task_id <= min(read_to)]


async def _check_tasks(
    store: Store, namespace: str, ids: list[str], after: str, effects: EffectCheck
) -> list[Problem]:
    """The problems of these tasks; without ids, of cards and side rows after the last task."""
    wrong: list[Problem] = []
    for task_id, record in sorted((await _read_records(store, namespace, ids, after)).items()):
        if _looks_wrong(task_id, record):
            wrong += await _check_again(store, namespace, task_id)
        elif any(event.type.startswith("effect.") for event in record.events):
            await effects.take(task_id, record.events)
    return wrong


async def _read_records(store: Store, namespace: str, ids: list[str], after: str) -> dict[str, TaskRecord]:
    """What the store has of these tasks; without ids, what lies after the last task."""
    found: defaultdict[str, TaskRecord] = defaultdict(TaskRecord)
    for task in await store.tasks_by_ids(namespace, ids):
        found[task.id].row = task
    for event in await store.events_between(namespace, ids[0], ids[-1]) if ids else ():
        found[event.task_id].events.append(event)
    # ids of a task's cards and side rows are its own id, or begin with it and a dot
    first, end = f"{after}/" if after else "", f"{ids[-1]}/" if ids else _END
    async for card in _read_cards(store, namespace, first, end):
        found[_owner_of(card)].cards.append(CardDigest.of_card(card))
    async for key, row in store.side_rows(namespace, first, end):
        found[key[1].partition(".")[0]].side_rows.append((key, row))
    return found


async def _read_cards(store: Store, namespace: str, first: str, end: str) -> AsyncIterator[Card]:
    while page := await store.cards_page(namespace, first, end, CARDS):
        for card in page:
            yield card
        first = page[-1].id


def _owner_of(card: Card) -> str:
    """The task that a card says it belongs to, if its id says so as well."""
    return card.task_id if card.id.startswith(f"{card.task_id}.") else card.id.partition(".")[0]


def _looks_wrong(task_id: str, record: TaskRecord) -> bool:
    try:
        return bool(problems_of(task_id, record))
    except Exception:  # the second look says what is wrong
        return True


async def _check_again(store: Store, namespace: str, task_id: str) -> list[Problem]:
    """Read one task until it did not change while it was read."""
    for _ in range(LOOKS):
        row = await store.find_task(namespace, task_id)
        events = await store.events_of_task(namespace, task_id)
        cards = await store.cards_between(namespace, f"{task_id}.", f"{task_id}/")
        side_rows = [
            (key, side_row)
            async for key, side_row in store.side_rows(namespace, task_id[:-1], f"{task_id}/")
            if key[1].partition(".")[0] == task_id
        ]
        if row == await store.find_task(namespace, task_id):
            digests = [CardDigest.of_card(card) for card in cards]
            return problems_of(task_id, TaskRecord(row, events, digests, side_rows))
    return []  # a task that changes this fast is being written by Endwell
