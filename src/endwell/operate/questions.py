"""What is asked about tasks: a page of them, one with everything that belongs to it, its history."""

from __future__ import annotations

from typing import Any

from endwell.errors import BadInput
from endwell.model.moments import moment
from endwell.model.task import Task
from endwell.operate.shapes import event_shape, task_shape
from endwell.operate.why import executing
from endwell.store.contract import Store
from endwell.store.deliverables import delivered
from endwell.store.turns import TurnRecord

_CURSOR_HINT = "give the `next` of the page before"


async def tasks(
    store: Store,
    namespace: str,
    *,
    status: str | None = None,
    agent: str | None = None,
    key: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """A page of tasks, newest first, without payloads, results and tracebacks."""
    if key is not None:
        found = await store.task_by_key(namespace, key)
        is_meant = found and status in (None, found.status) and agent in (None, found.agent)
        return {"items": [brief_task(found)] if found and is_meant else [], "next": None}
    if cursor is not None and await store.find_task(namespace, cursor) is None:
        raise no_such_place()
    page = await store.tasks_page(namespace, status=status, agent=agent, before=cursor, limit=limit + 1)
    items = [brief_task(task) for task in page[:limit]]
    return {"items": items, "next": page[limit - 1].id if len(page) > limit else None}


def no_such_place() -> BadInput:
    """A cursor that no page has given."""
    return BadInput("this is no cursor of such a page", code="bad_cursor", field="cursor", hint=_CURSOR_HINT)


def brief_task(task: Task) -> dict[str, Any]:
    """A task as one of many."""
    shape = task_shape(task)
    if shape["error"]:
        shape["error"] = {key: value for key, value in shape["error"].items() if key != "traceback"}
    return shape


async def whole_task(store: Store, namespace: str, task_id: str) -> dict[str, Any]:
    """A task with what was asked, what came of it, and the turns it took."""
    task = await store.task(namespace, task_id)
    payload = (await store.card(namespace, task.payload_card)).content
    deliverable = await delivered(store, task)
    turns = await store.turns_of_task(namespace, task_id)
    session = await store.session(namespace, task.session_id) if task.session_id else None
    return {
        **task_shape(task, payload, deliverable),
        "deliverable": deliverable,
        "executing": executing(task, session),
        "turns": [_turn_shape(turn) for turn in turns],
    }


def _turn_shape(turn: TurnRecord) -> dict[str, Any]:
    return {
        "id": turn.id,
        "number": turn.number,
        "attempt_id": turn.attempt_id,
        "worker_id": turn.session_id,
        "epoch": turn.epoch,
        "outcome": turn.outcome,
        "error": turn.error,
        "ended_at": moment(turn.ended_at),
    }


async def history(store: Store, namespace: str, task_id: str) -> dict[str, Any]:
    """All events of a task, oldest first."""
    await store.task(namespace, task_id)
    items, previous = [], b""
    for event in await store.events_of_task(namespace, task_id):
        items.append(event_shape(event, previous))
        previous = event.hash
    return {"items": items, "next": None}
