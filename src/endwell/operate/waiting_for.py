"""What a task waits for: an answer, a time, a person, a worker, or an effect of an earlier attempt."""

from __future__ import annotations

from typing import Any

from endwell.machine.holds import EFFECT_UNKNOWN, waits_for_person
from endwell.model import status as s
from endwell.model.inside import inside_of
from endwell.model.moments import moment
from endwell.model.session import Session
from endwell.model.task import Task, has_wait_rows, waits_of
from endwell.model.wait import Wait
from endwell.store.contract import Store

MOST_EFFECTS = 20
MOST_WAITS_SHOWN = 100


async def waiting_for(
    store: Store, task: Task, now: int, live: list[Session], *, margin: int
) -> list[dict[str, Any]]:
    """The waits of a task, each with kind, id and deadline; empty while the task runs.

    `margin`: microseconds after an effect's own time before its outcome is asked for.
    """
    if task.status == s.SUSPENDED:
        return [_wait_shape(task, wait) for wait in await _open_waits(store, task)]
    if task.status == s.WAITING_APPROVAL:
        start = {"kind": "approval", "id": task.id, "deadline": moment(task.expire_at)}
        return [{**start, "by": _approvers_left(task, task.id)}]
    if task.status == s.QUEUED and task.run_at > now:
        return [{"kind": "start_time", "id": None, "deadline": moment(task.run_at)}]
    if task.status in (s.QUEUED, s.DISPATCHED):
        return [await _worker_wait(store, task, live)]
    if task.status == s.RUNNING:
        return await _earlier_effects(store, task, margin)
    if waits_for_person(task):
        deadline = moment(task.ends_by) if task.held_since is None else None
        person = {"kind": "person", "id": task.owner, "deadline": deadline}
        return [*await _unknown_effects(store, task), person]
    if task.status == s.BLOCKED:
        return [{"kind": "cooldown", "id": task.reason, "deadline": moment(task.recover_at)}]
    return []


async def _open_waits(store: Store, task: Task) -> list[Wait]:
    """In the order of the calls; of many waits only the first."""
    if has_wait_rows(task):
        return await store.open_waits(task.namespace, task.turn_id or "", MOST_WAITS_SHOWN)
    return [wait for wait in waits_of(task) if wait.is_open]


def is_served(task: Task, live: list[Session]) -> bool:
    """Whether a live worker serves the task's agent."""
    return any(task.agent in session.agents.split() for session in live if session.kind == "worker")


def _wait_shape(task: Task, wait: Wait) -> dict[str, Any]:
    about = {
        "kind": wait.kind,
        "id": wait.tool_call_id,
        "name": wait.name or None,
        "deadline": moment(wait.deadline),
    }
    if wait.kind == "approval":
        return {**about, "by": _approvers_left(task, wait.tool_call_id)}
    return about


def _approvers_left(task: Task, approval_id: str) -> list[str]:
    """The named people who have not decided yet; empty if anybody may decide."""
    approval = next((one for one in inside_of(task).asked if one.id == approval_id), None)
    return [] if approval is None else [name for name in approval.by if name not in approval.votes]


async def _earlier_effects(store: Store, task: Task, margin: int) -> list[dict[str, Any]]:
    """Effects that an earlier attempt began: their outcome is asked for when their time is over."""
    if not inside_of(task).intents:
        return []
    intended = await store.effects_page(task.namespace, status="intended", task_id=task.id)
    return [
        {"kind": "earlier_effect", "id": effect.key, "deadline": moment((effect.not_after or 0) + margin)}
        for effect in intended
        if effect.attempt_id != task.attempt_id
    ]


async def _unknown_effects(store: Store, task: Task) -> list[dict[str, Any]]:
    """Effects that the owner must settle."""
    held_for = inside_of(task).held_for
    keys = [held_for] if held_for else await _unknown_keys(store, task)
    return [{"kind": "effect", "id": key, "deadline": None} for key in keys]


async def _unknown_keys(store: Store, task: Task) -> list[str]:
    """Rows of earlier versions do not name the effect that a task is held for: it may be any of its own."""
    if task.reason != EFFECT_UNKNOWN:
        return []
    found = await store.effects_page(task.namespace, status="unknown", task_id=task.id, limit=MOST_EFFECTS)
    return [effect.key for effect in found]


async def _worker_wait(store: Store, task: Task, live: list[Session]) -> dict[str, Any]:
    """A ready task waits for a worker that serves its agent, for its key, or for a free slot."""
    if not is_served(task, live):
        return {"kind": "no_live_worker", "id": task.agent, "deadline": moment(task.ends_by)}
    holder = await store.key_holder(task.namespace, task.agent, task.agent_key) if task.agent_key else None
    if holder is not None and holder != task.id:
        return {"kind": "agent_key", "id": holder, "deadline": moment(task.ends_by)}
    return {"kind": "worker", "id": task.agent, "deadline": moment(task.ends_by)}
