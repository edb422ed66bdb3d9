"""Where a task is, what moves it next, and when it ends at the latest: read off the clock table."""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.machine.unblocking import waits_for_person
from endwell.model import status as s
from endwell.model.card import step_label
from endwell.model.inside import inside_of
from endwell.model.moments import moment
from endwell.model.session import Session, doing_of
from endwell.model.task import Task, error_of, has_wait_rows, open_waits
from endwell.operate.awaited import MOST_WAITS_SHOWN, is_served, waiting_for
from endwell.operate.holders import ending, locks
from endwell.policy.limits import SECOND
from endwell.settings import Settings
from endwell.store.contract import Store

LATE_TICKS = 3
"""A supervisor that has not ticked for so many of its intervals is none."""
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


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often a supervisor looks, and for how long after an effect's own time others keep away from it."""

    tick_seconds: float
    margin_seconds: float

    @classmethod
    def of(cls, settings: Settings) -> Pace:
        """As the settings have it."""
        return cls(
            tick_seconds=settings.pmo.watchdog_interval_seconds,
            margin_seconds=settings.worker.effect_margin_seconds,
        )


async def why(store: Store, namespace: str, task_id: str, *, pace: Pace) -> dict[str, Any]:
    """The answer for one task. A supervisor that looks once per tick ends it within two after `ends_by`."""
    task = await store.task(namespace, task_id)
    now = await store.now()
    session = await store.session(namespace, task.session_id) if task.session_id else None
    rule, at = next_move(task, now, session)
    live = [each for each in await store.open_sessions(namespace) if each.lease_until > now]
    awaited = await waiting_for(store, task, now, live, margin=int(pace.margin_seconds * SECOND))
    return {
        "task_id": task.id,
        "status": task.status,
        "meaning": s.MEANING[task.status],
        "reason": task.reason,
        "error": _error(task),
        "holder": _holder(session),
        "executing": executing(task, session),
        "waiting_for": awaited,
        "next": {"rule": rule, "at": moment(at)},
        "ends_by": moment(task.ends_by),
        "ended_at_the_latest": moment(latest_end(task, pace.tick_seconds)),
        "owner": task.owner,
        "actions": _actions(task, {wait["kind"] for wait in awaited}),
        "notes": await _all_notes(store, task, live, session, now, pace.tick_seconds),
    }


def latest_end(task: Task, tick_seconds: float) -> int | None:
    """By when it will have ended; unknown while a hold stops `ends_by`."""
    if task.is_ended:
        return task.ended_at
    return None if task.held_since is not None else task.ends_by + int(2 * tick_seconds * SECOND)


async def _all_notes(
    store: Store, task: Task, live: list[Session], holder: Session | None, now: int, tick_seconds: float
) -> list[str]:
    """Who keeps others from writing, and what else is to be known, as far as it can be trusted then."""
    if blocked := await _blocked(store, task, holder):
        return blocked
    locking = [] if task.is_ended else await store.lock_holders()
    notes = [f"{locks(one)}. To end it: {ending(one)}" for one in locking]
    if any(one.hides_life for one in locking):
        return notes
    return notes + _notes(task, live, holder, now, tick_seconds)


async def _blocked(store: Store, task: Task, holder: Session | None) -> list[str]:
    """Who keeps every process from writing to the store; then no sign of life can be trusted."""
    pid = None if task.is_ended else (await store.settings()).get("blocked_by")
    if pid is None:
        return []
    since = (
        ""
        if holder is None
        else f" (its worker's last heartbeat was written at {moment(holder.heartbeat_at)})"
    )
    what = f"process {pid} holds SQLite's write lock, so nothing can be written{since}"
    return [f"{what}: let it go on with `kill -CONT {pid}`, or end it"]


def _notes(
    task: Task, live: list[Session], holder: Session | None, now: int, tick_seconds: float
) -> list[str]:
    """What a person should know who wonders why nothing happens."""
    if task.is_ended:
        return []
    notes = []
    if not any(_ticks(session, now, tick_seconds) for session in live):
        notes.append("no live supervisor: no clock fires until `endwell pmo` or `endwell up` runs")
    is_held = holder is not None and not _is_gone(holder, now)
    if not is_held and not is_served(task, live):
        notes.append(
            f"no live worker serves this agent: start one with `endwell worker --agents {task.agent}`"
        )
    if holder is not None:
        notes += _about(holder, now)
    if has_wait_rows(task) and task.status == s.SUSPENDED:
        notes.append(
            f"it waits for {open_waits(task):,} answers; `waiting_for` shows {MOST_WAITS_SHOWN} at most"
        )
    if waits_for_person(task):
        notes.append(_about_hold(task))
    return notes


def _about_hold(task: Task) -> str:
    """Whether `ends_by` stands still, and for which of the two reasons that may stop it."""
    if task.held_since is None:
        return (
            f"{task.owner} was informed and has not accepted it: ends_by keeps running. "
            "To stop it, accept the task with `task assign`"
        )
    since = moment(task.held_since)
    inside = inside_of(task)
    if inside.held_for:
        return f"ends_by stands still since {since}: the hold protects the unknown effect {inside.held_for!r}"
    if inside.accepted_by:
        return f"ends_by stands still since {since}: {inside.accepted_by} accepted to hold it"
    return f"ends_by stands still since {since} by the rule of an earlier version, until the next reminder"


def _ticks(session: Session, now: int, tick_seconds: float) -> bool:
    """A supervisor that fires clocks: alive is not enough."""
    last = session.ticked_at or session.started_at
    return session.kind == "pmo" and now - last <= LATE_TICKS * tick_seconds * SECOND


def _is_gone(holder: Session, now: int) -> bool:
    return holder.ended_at is not None or holder.lease_until <= now


def _about(holder: Session, now: int) -> list[str]:
    """A heartbeat comes at least twice per lease, so one that is silent for half of it is late."""
    since = moment(holder.heartbeat_at)
    if _is_gone(holder, now):
        return [f"its worker was last heard of at {since}: the turn is taken back and offered to another"]
    if 2 * (now - holder.heartbeat_at) > holder.lease_until - holder.heartbeat_at:
        until = moment(holder.lease_until)
        return [f"its worker is not heard of since {since}: unless it is, the turn is taken back at {until}"]
    return []


def next_move(task: Task, now: int, holder: Session | None) -> tuple[str | None, int | None]:
    """What happens by itself next: a delayed start, the clock, or that it is taken from a dead worker."""
    if task.status == s.QUEUED and task.run_at > now and task.run_at < (task.clock_at or task.run_at + 1):
        return "start", task.run_at
    if holder is not None and _is_gone(holder, now):
        return "reclaim", holder.ended_at or holder.lease_until
    return task.clock_rule, task.clock_at


def _error(task: Task) -> dict[str, Any] | None:
    """What went wrong last, without the traceback that `task show` has."""
    error = error_of(task)
    if error is None:
        return None
    told = {"code": error.code, "type": error.type, "message": error.message}
    return {key: value for key, value in told.items() if value}


def _holder(session: Session | None) -> dict[str, Any] | None:
    if session is None:
        return None
    return {
        "worker_id": session.id,
        "name": session.name,
        "pid": session.pid,
        "host": session.host,
        "last_heartbeat": moment(session.heartbeat_at),
        "lease_until": moment(session.lease_until),
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


def _actions(task: Task, waits: set[str]) -> list[str]:
    if task.dead_letter == "open":
        return ["dlq replay", "dlq abandon"]
    if task.superseded_by is not None:
        return []
    if task.status == s.SUSPENDED:
        said = [action for kind in _ANSWERED_BY if kind in waits for action in _ANSWERED_BY[kind]]
        return [*said, "task cancel"]
    if task.status == s.BLOCKED and "effect" in waits:
        return ["effect settle", "task assign", "task cancel"]
    return _ACTIONS.get(task.status, ["task retry"])
