"""Where a task is, what moves it next, and when it ends at the latest: read off the clock table."""

from __future__ import annotations

from typing import Any

from endwell.machine.unblocking import EFFECT_UNKNOWN
from endwell.model import status as s
from endwell.model.card import step_label
from endwell.model.inside import inside_of
from endwell.model.moments import moment
from endwell.model.session import Session, doing_of
from endwell.model.task import Task, waits_of
from endwell.policy.limits import SECOND
from endwell.store.contract import Store

TICK_SECONDS = 5.0
"""How often a supervisor looks, unless the settings say otherwise."""
MOST_EFFECTS = 20
_ACTIONS: dict[str, list[str]] = {
    s.WAITING_APPROVAL: ["approval approve", "approval reject", "task cancel"],
    s.QUEUED: ["task cancel", "task retry"],
    s.DISPATCHED: ["task cancel"],
    s.RUNNING: ["task cancel"],
    s.BLOCKED: ["task unblock", "task assign", "task cancel"],
    s.SUCCEEDED: [],
    s.CANCELLED: ["task retry"],
}

_ANSWERED_BY: dict[str, list[str]] = {
    "approval": ["approval approve", "approval reject"],
    "tool": ["tool answer"],
    "signal": ["signal"],
}
"""What a person can do about a wait of each kind; the others end by themselves."""


async def why(
    store: Store, namespace: str, task_id: str, *, tick_seconds: float = TICK_SECONDS
) -> dict[str, Any]:
    """The answer for one task. A supervisor that looks once per tick ends it within two after `ends_by`."""
    task = await store.task(namespace, task_id)
    now = await store.now()
    session = await store.session(namespace, task.session_id) if task.session_id else None
    rule, at = next_move(task, now)
    live = [each for each in await store.open_sessions(namespace) if each.lease_until > now]
    waiting_for = await _waiting_for(store, task, now, live)
    return {
        "task_id": task.id,
        "status": task.status,
        "meaning": s.MEANING[task.status],
        "reason": task.reason,
        "holder": _holder(session),
        "executing": executing(task, session),
        "waiting_for": waiting_for,
        "next": {"rule": rule, "at": moment(at)},
        "ends_by": moment(task.ends_by),
        "ended_at_the_latest": moment(latest_end(task, tick_seconds)),
        "owner": task.owner,
        "actions": _actions(task, {wait["kind"] for wait in waiting_for}),
        "notes": _notes(task, live, session),
    }


def latest_end(task: Task, tick_seconds: float) -> int | None:
    """By when it will have ended; nobody can say while a person holds it."""
    if task.is_ended:
        return task.ended_at
    return None if task.held_since is not None else task.ends_by + int(2 * tick_seconds * SECOND)


def _notes(task: Task, live: list[Session], holder: Session | None) -> list[str]:
    """What a person should know who wonders why nothing happens."""
    if task.is_ended:
        return []
    notes = []
    if not any(session.kind == "pmo" for session in live):
        notes.append("no live supervisor: no clock fires until `endwell pmo` or `endwell up` runs")
    if task.status in (s.QUEUED, s.DISPATCHED) and not _is_served(task, live):
        notes.append(
            f"no live worker serves this agent: start one with `endwell worker --agents {task.agent}`"
        )
    if holder is not None and holder.id not in {session.id for session in live}:
        since = moment(holder.heartbeat_at)
        notes.append(
            f"its worker was last heard of at {since}: the turn is taken back and offered to another"
        )
    if task.held_since is not None:
        since = moment(task.held_since)
        notes.append(f"{task.owner} holds it since {since}: its time stands still until somebody moves it")
    return notes


def _is_served(task: Task, live: list[Session]) -> bool:
    return any(task.agent in session.agents.split() for session in live if session.kind == "worker")


def next_move(task: Task, now: int) -> tuple[str | None, int | None]:
    """What happens by itself next: a delayed start, or the clock."""
    if task.status == s.QUEUED and task.run_at > now and task.run_at < (task.clock_at or task.run_at + 1):
        return "start", task.run_at
    return task.clock_rule, task.clock_at


def _holder(session: Session | None) -> dict[str, Any] | None:
    if session is None:
        return None
    return {
        "worker_id": session.id,
        "name": session.name,
        "pid": session.pid,
        "host": session.host,
        "last_heartbeat": moment(session.heartbeat_at),
    }


def executing(task: Task, session: Session | None) -> list[dict[str, Any]]:
    """Which steps its worker has been at for a while, as of the last heartbeat."""
    if session is None:
        return []
    return [
        {"step": step_label(one.step), "since": moment(one.since), "worker": session.name}
        for one in doing_of(session)
        if one.attempt_id == task.attempt_id
    ]


async def _waiting_for(store: Store, task: Task, now: int, live: list[Session]) -> list[dict[str, Any]]:
    if task.status == s.SUSPENDED:
        return [
            {
                "kind": wait.kind,
                "id": wait.tool_call_id,
                "name": wait.name or None,
                "deadline": moment(wait.deadline),
            }
            for wait in waits_of(task)
            if wait.wait_status == "waiting"
        ]
    if task.status == s.WAITING_APPROVAL:
        return [{"kind": "approval", "id": task.id, "deadline": moment(task.expire_at)}]
    if task.status == s.QUEUED and task.run_at > now:
        return [{"kind": "start_time", "id": None, "deadline": moment(task.run_at)}]
    if task.status in (s.QUEUED, s.DISPATCHED):
        return [await _waiting_for_worker(store, task, live)]
    if task.status == s.BLOCKED and task.held_since is not None:
        person = {"kind": "person", "id": task.owner, "deadline": None}
        return [*await _unknown_effects(store, task), person]
    if task.status == s.BLOCKED:
        return [{"kind": "cooldown", "id": task.reason, "deadline": moment(task.recover_at)}]
    return []


async def _unknown_effects(store: Store, task: Task) -> list[dict[str, Any]]:
    """What the person who holds it is to say something of."""
    held_for = inside_of(task).held_for
    keys = [held_for] if held_for else await _unknown_keys(store, task)
    return [{"kind": "effect", "id": key, "deadline": None} for key in keys]


async def _unknown_keys(store: Store, task: Task) -> list[str]:
    """Rows of earlier versions do not say for which effect a task is held: it may be any of its own."""
    if task.reason != EFFECT_UNKNOWN:
        return []
    found = await store.effects_page(task.namespace, status="unknown", task_id=task.id, limit=MOST_EFFECTS)
    return [effect.key for effect in found]


async def _waiting_for_worker(store: Store, task: Task, live: list[Session]) -> dict[str, Any]:
    """A free worker, a free key, or a worker that serves the agent at all."""
    if not _is_served(task, live):
        return {"kind": "no_live_worker", "id": task.agent, "deadline": moment(task.ends_by)}
    holder = await store.key_holder(task.namespace, task.agent, task.agent_key) if task.agent_key else None
    if holder is not None and holder != task.id:
        return {"kind": "agent_key", "id": holder, "deadline": moment(task.ends_by)}
    return {"kind": "worker", "id": task.agent, "deadline": moment(task.ends_by)}


def _actions(task: Task, waits: set[str]) -> list[str]:
    if task.dead_letter == "open":
        return ["dlq replay", "dlq abandon"]
    if task.superseded_by is not None:
        return []
    if task.status == s.SUSPENDED:
        open_kinds = {wait.kind for wait in waits_of(task) if wait.is_open}
        said = [action for kind in _ANSWERED_BY if kind in open_kinds for action in _ANSWERED_BY[kind]]
        return [*said, "task cancel"]
    if task.status == s.BLOCKED and "effect" in waits:
        return ["effect settle", "task assign", "task cancel"]
    return _ACTIONS.get(task.status, ["task retry"])
