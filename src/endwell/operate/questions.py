"""Questions about tasks: a page of them, one with all details, its history, its tree.

The shapes of tasks and events are fixed for outside programs. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.model import content
from endwell.model.inside import family_of
from endwell.model.moments import moment
from endwell.model.task import Task, error_of
from endwell.operate.pages import bad_cursor, page_of
from endwell.operate.why import executing_steps
from endwell.store.contract import Store
from endwell.store.log import Event, Logged, TurnRecord

MOST_TASKS = 1000
"""Tasks of a tree that are shown; `is_cut` marks a larger tree."""


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
        is_match = found and status in (None, found.status) and agent in (None, found.agent)
        return {"items": [brief_task(found)] if found and is_match else [], "next": None}
    if cursor is not None and await store.find_task(namespace, cursor) is None:
        raise bad_cursor()
    page = await store.tasks_page(namespace, status=status, agent=agent, before=cursor, limit=limit + 1)
    return page_of(page, limit, brief_task, lambda task: task.id)


def brief_task(task: Task) -> dict[str, Any]:
    """A task in a list: without the traceback of its error."""
    shape = task_shape(task)
    if shape["error"]:
        shape["error"] = {key: value for key, value in shape["error"].items() if key != "traceback"}
    return shape


async def whole_task(store: Store, namespace: str, task_id: str) -> dict[str, Any]:
    """A task with its payload, its deliverable and its turns."""
    task = await store.task(namespace, task_id)
    payload = (await store.card(namespace, task.payload_card)).content
    deliverable = await store.deliverable_of(task)
    turns = await store.turns_of_task(namespace, task_id)
    session = await store.session(namespace, task.session_id) if task.session_id else None
    return {
        **task_shape(task, payload, deliverable),
        "deliverable": deliverable,
        "executing": executing_steps(task, session),
        "turns": [_turn_shape(turn) for turn in turns],
    }


async def history(store: Store, namespace: str, task_id: str) -> dict[str, Any]:
    """All events of a task, oldest first."""
    await store.task(namespace, task_id)
    items, previous = [], b""
    for event in await store.events_of_task(namespace, task_id):
        items.append(event_shape(event, previous))
        previous = event.hash
    return {"items": items, "next": None}


async def tree(store: Store, namespace: str, task_id: str) -> dict[str, Any]:
    """A task with the tasks that its agents have asked for, level by level."""
    root = _node_shape(await store.task(namespace, task_id))
    level, count = [root], 1
    while level:
        below: list[dict[str, Any]] = []
        for node in level:
            if count >= MOST_TASKS:
                return {**root, "is_cut": True}
            node["children"] = [_node_shape(child) for child in await store.children(namespace, node["id"])]
            below += node["children"]
            count += len(node["children"])
        level = below
    return {**root, "is_cut": False}


def task_shape(task: Task, payload: bytes | None = None, deliverable: Any = None) -> dict[str, Any]:
    """A task for outside programs; payload and result only if their cards were read."""
    error = error_of(task)
    return {
        "id": task.id,
        "namespace": task.namespace,
        "agent": task.agent,
        "agent_key": task.agent_key,
        "idempotency_key": task.idempotency_key,
        "channel": task.channel,
        "priority": task.priority,
        "status": task.status,
        "reason": task.reason,
        "owner": task.owner,
        "payload": None if payload is None else content.decode_stored(payload),
        "result": deliverable if task.status == "succeeded" else None,
        "error": error and {"type": "", "message": "", "retryable": True, **msgspec.to_builtins(error)},
        "deliverable_card_id": task.deliverable_card,
        "dead_letter": task.dead_letter,
        "attempt_id": task.attempt_id,
        "worker_id": task.session_id,
        "turn_id": task.turn_id,
        "epoch": task.epoch,
        "version": task.version,
        "retry_count": task.retry_count,
        "dispatch_count": task.dispatch_count,
        "crash_count": task.crash_count,
        "clock_at": moment(task.clock_at),
        "clock_rule": task.clock_rule,
        "ends_by": moment(task.ends_by),
        "run_at": moment(task.run_at),
        "created_at": moment(task.created_at),
        "started_at": moment(task.started_at),
        "ended_at": moment(task.ended_at),
        "parent_id": task.parent_id,
        "replay_of": task.replay_of,
        "superseded_by": task.superseded_by,
    }


def event_shape(event: Event, prev_hash: bytes, seq: int | None = None) -> dict[str, Any]:
    """An event for outside programs."""
    return {
        "seq": seq,
        "event_id": event.event_id,
        "namespace": event.namespace,
        "task_id": event.task_id,
        "version": event.version,
        "type": event.type,
        "actor": event.actor,
        "at": moment(event.at),
        "attempt_id": event.attempt_id,
        "epoch": event.epoch,
        "command_id": event.command_id,
        "data": msgspec.json.decode(event.data),
        "prev_hash": prev_hash.hex(),
        "hash": event.hash.hex(),
    }


def logged_shape(logged: Logged) -> dict[str, Any]:
    """The same for an event with its position in the log."""
    return event_shape(logged.event, logged.prev_hash, logged.seq)


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


def _node_shape(task: Task) -> dict[str, Any]:
    family = family_of(task)
    return {
        "id": task.id,
        "agent": task.agent,
        "agent_key": task.agent_key,
        "status": task.status,
        "reason": task.reason,
        "parent_call": family.parent_call,
        "on_parent_end": family.on_parent_end if task.parent_id else None,
        "owner": task.owner,
        "created_at": moment(task.created_at),
        "ended_at": moment(task.ended_at),
        "children": [],
    }
