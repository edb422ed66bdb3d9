"""Checking the record: every task's log is whole, its row and its effects are what the log comes to, and
every piece of content is what the log names.

Tasks are read in pages, so memory stays the same however many there are. A live installation moves on
while it is read; whatever looks wrong is therefore looked at again, alone, before it counts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import asdict

from endwell.model.card import Card
from endwell.model.task import Task
from endwell.operate.record_check import (
    EffectRows,
    card_problems,
    row_problems,
    tasks_with_odd_cards,
    tasks_with_odd_rows,
)
from endwell.store.contract import Store
from endwell.store.log import Event, Problem, check_chain
from endwell.store.working_set import replay

PAGE = 500
REMARK_EVERY = 50_000
MOST_PROBLEMS = 10_000
"""So many are listed; the rest are counted."""
COUNT_DIFFERS = "count_differs"
"""The kind of a problem of a whole namespace: there are not the tasks that were counted."""
_LOOKS = 10

Progress = Callable[[int], None]


async def verify(
    store: Store, namespaces: Iterable[str], progress: Progress = lambda count: None
) -> dict[str, Any]:
    """Check all tasks of these namespaces; `progress` is told every so often how many were checked."""
    checked, problems, found = 0, list[Problem](), 0
    for namespace in namespaces:
        async for count, wrong in _namespace(store, namespace):
            problems += wrong[: MOST_PROBLEMS - len(problems)]
            found += len(wrong)
            before, checked = checked, checked + count
            if checked // REMARK_EVERY > before // REMARK_EVERY:
                progress(checked)
    return {
        "ok": not found,
        "checked": checked,
        "found": found,
        "problems": [asdict(one) for one in problems],
    }


async def _namespace(store: Store, namespace: str) -> AsyncIterator[tuple[int, list[Problem]]]:
    """How many tasks each page has, and what is wrong with them; then what lies beside all tasks."""
    after, effects, is_whole = "", EffectRows(store, namespace), True
    while page := await _page(store, namespace, after):
        wrong = await _problems(store, namespace, page, after, effects)
        is_whole = is_whole and not wrong
        yield len(page), wrong
        after = page[-1]
    odd = await tasks_with_odd_cards(store, namespace, after, None, {})
    odd |= await tasks_with_odd_rows(store, namespace, after, None, {})
    wrong = [one for task_id in sorted(odd) for one in await _looked_at_again(store, namespace, task_id)]
    wrong += await effects.problems()
    yield 0, wrong
    if is_whole and not wrong and not (await store.conservation(namespace)).holds:
        yield 0, [Problem("", 0, COUNT_DIFFERS)]


async def _page(store: Store, namespace: str, after: str) -> list[str]:
    """The next tasks that have a row, events, or both. Each source is trusted as far as it was read."""
    rows = [head[0] for head in await store.heads(namespace, after, PAGE)]
    logged = await store.event_tasks(namespace, after, PAGE)
    read_to = [source[-1] for source in (rows, logged) if len(source) == PAGE]
    both = sorted({*rows, *logged})
    return [task_id for task_id in both if not read_to or task_id <= min(read_to)]


async def _problems(
    store: Store, namespace: str, ids: list[str], after: str, effects: EffectRows
) -> list[Problem]:
    rows = {task.id: task for task in await store.tasks_by_ids(namespace, ids)}
    events = await store.events_between(namespace, ids[0], ids[-1])
    logs = {task_id: list(log) for task_id, log in groupby(events, key=lambda event: event.task_id)}
    odd = await tasks_with_odd_cards(store, namespace, after, ids[-1], logs)
    odd |= await tasks_with_odd_rows(store, namespace, after, ids[-1], logs)
    for task_id in ids:
        if problems_of(task_id, rows.get(task_id), logs.get(task_id, [])):
            odd.add(task_id)
        elif any(event.type.startswith("effect.") for event in logs[task_id]):
            await effects.take(task_id, logs[task_id])
    wrong = [one for task_id in sorted(odd) for one in await _looked_at_again(store, namespace, task_id)]
    misplaced = await store.events_out_of_order(namespace, ids[0], ids[-1])
    return wrong + [Problem(task_id, version, "out_of_order") for task_id, version in misplaced]


async def _looked_at_again(store: Store, namespace: str, task_id: str) -> list[Problem]:
    """Read row, log and row again, until the task stood still meanwhile."""
    for _ in range(_LOOKS):
        row = await store.find_task(namespace, task_id)
        events = await store.events_of_task(namespace, task_id)
        cards = await store.cards_between(namespace, f"{task_id}.", f"{task_id}/")
        # ids of this task's rows are its own id, or begin with it and a dot
        beside = [
            (key, one)
            async for key, one in store.rows_beside(namespace, task_id[:-1], f"{task_id}/")
            if key[1].partition(".")[0] == task_id
        ]
        if row == await store.find_task(namespace, task_id):
            return problems_of(task_id, row, events, cards) or row_problems(task_id, events, beside)
    return []  # a task that moves this fast is being written by Endwell


def problems_of(
    task_id: str, row: Task | None, events: list[Event], cards: Sequence[Card] | None = None
) -> list[Problem]:
    """What is wrong with one task: its chain first, then its row, then the content that was read."""
    head = None if row is None else (row.version, row.head_hash)
    wrong = list(check_chain(task_id, events, head)) if events or row is not None else []
    wrong = wrong or ([] if row is None else _row_problems(row, events))
    if wrong or cards is None:
        return wrong
    return card_problems(task_id, events, cards)


def _row_problems(row: Task, events: list[Event]) -> list[Problem]:
    try:
        is_same = replay(events) == row
    except Exception:  # the chain is whole, so this log was written by something that is not Endwell
        return [Problem(row.id, row.version, "unreadable")]
    return [] if is_same else [Problem(row.id, row.version, "row_differs")]
