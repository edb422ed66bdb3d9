"""A task and everything that was asked for on its behalf."""

from __future__ import annotations

from typing import Any

from endwell.model.inside import family_of
from endwell.model.moments import moment
from endwell.model.task import Task
from endwell.store.contract import Store

MOST_TASKS = 1000
"""A tree that is larger is shown up to here, and says so."""


async def tree(store: Store, namespace: str, task_id: str) -> dict[str, Any]:
    """The task with its children and theirs, level by level."""
    root = _node(await store.task(namespace, task_id))
    level, count = [root], 1
    while level:
        below: list[dict[str, Any]] = []
        for node in level:
            if count >= MOST_TASKS:
                return {**root, "is_cut": True}
            children = [_node(child) for child in await store.children(namespace, node["id"])]
            node["children"] = children
            below += children
            count += len(children)
        level = below
    return {**root, "is_cut": False}


def _node(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "agent": task.agent,
        "agent_key": task.agent_key,
        "status": task.status,
        "reason": task.reason,
        "parent_call": family_of(task).parent_call,
        "on_parent_end": family_of(task).on_parent_end if task.parent_id else None,
        "owner": task.owner,
        "created_at": moment(task.created_at),
        "ended_at": moment(task.ended_at),
        "children": [],
    }
