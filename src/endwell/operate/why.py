"""Why: where a task is, what moves it next, when it ends at the latest; read off the clock table."""

from __future__ import annotations

from typing import Any

import msgspec

from endwell.machine.holds import waits_for_person
from endwell.model import status as s
from endwell.model.card import step_label
from endwell.model.inside import inside_of
from endwell.model.moments import SECOND, moment
from endwell.model.session import Session, doing_of
from endwell.model.task import Task, error_of, has_wait_rows, open_waits
from endwell.operate.lock_holders import ending_command, locks_text
from endwell.operate.waiting_for import MOST_WAITS_SHOWN, is_served, waiting_for
from endwell.policy.limits import LATE_INTERVALS
from endwell.settings import Settings
from endwell.store.contract import Store

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
"""What a person can do about a wait of each kind; waits of other kinds end by themselves."""


class WhyPace(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds between two ticks of a PMO, and how long after its own time an effect is left alone."""

    tick_seconds: float
    margin_seconds: float

    @classmethod
    def from_settings(cls, settings: Settings) -> WhyPace:
        """The pace that the settings give."""
        return cls(
            tick_seconds=settings.pmo.watchdog_interval_seconds,
            margin_seconds=settings.worker.effect_margin_seconds,
        )


async def why(store: Store, namespace: str, task_id: str, *, pace: WhyPace) -> dict[str, Any]:
    """The answer for one task. A PMO ends it within two ticks after `ends_by`."""
    task = await store.task(namespace, task_id)
    now = await store.now()
    session = await store.session(namespace, task.session_id) if task.session_id else None
    rule, at = next_move(task, now, session)
    live = [each for each in await store.open_sessions(namespace) if each.lease_until > now]
    waits = await waiting_for(store, task, now, live, margin=int(pace.margin_seconds * SECOND))
    return {
        "task_id": task.id,
        "status": task.status,
        "meaning": s.MEANING[task.status],
        "reason": task.reason,
        "error": _error(task),
        "holder": _holder_shape(session),
        "executing": executing_steps(task, session),
        "waiting_for": waits,
        "next": {"rule": rule, "at": moment(at)},
        "ends_by": moment(task.ends_by),
        "ended_at_the_latest": moment(latest_end(task, pace.tick_seconds)),
        "owner": task.owner,
        "actions": _possible_actions(task, {wait["kind"] for wait in waits}),
        "notes": await _all_notes(store, task, live, session, now, pace.tick_seconds),
    }


def latest_end(task: Task, tick_seconds: float) -> int | None:
    """When the task has ended at the latest; None while a hold stops `ends_by`."""
    if task.is_ended:
        return task.ended_at
    return None if task.held_since is not None else task.ends_by + int(2 * tick_seconds * SECOND)


async def _all_notes(
    store: Store, task: Task, live: list[Session], holder: Session | None, now: int, tick_seconds: float
) -> list[str]:
    """Processes that keep others from writing, and what is known in spite of them."""
    if notes := await _write_lock_notes(store, task, holder):
        return notes
    locking = [] if task.is_ended else await store.lock_holders()
    notes = [f"{locks_text(one)}. To end it: {ending_command(one)}" for one in locking]
    if any(one.hides_life for one in locking):
        return notes
    return notes + _make_notes(task, live, holder, now, tick_seconds)


async def _write_lock_notes(store: Store, task: Task, holder: Session | None) -> list[str]:
    """A process that keeps all others from writing: while it does, no heartbeat can be stored."""
    pid = None if task.is_ended else (await store.settings()).get("blocked_by")
    if pid is None:
        return []
    beat = f" (last heartbeat of the worker: {moment(holder.heartbeat_at)})" if holder else ""
    problem = f"process {pid} holds SQLite's write lock, so no process can write to the store{beat}"
    return [f"{problem}: continue it with `kill -CONT {pid}`, or end it"]


def _make_notes(
    task: Task, live: list[Session], holder: Session | None, now: int, tick_seconds: float
) -> list[str]:
    """Reasons why nothing happens, for a person who wonders."""
    if task.is_ended:
        return []
    notes = []
    if not any(_is_ticking(session, now, tick_seconds) for session in live):
        notes.append(
            "no live PMO (supervisor process): no clock fires until `endwell pmo` or `endwell up` runs"
        )
    is_held = holder is not None and not _is_gone(holder, now)
    if not is_held and not is_served(task, live):
        notes.append(
            f"no live worker serves this agent: start one with `endwell worker --agents {task.agent}`"
        )
    if holder is not None:
        notes += _holder_notes(holder, now)
    if has_wait_rows(task) and task.status == s.SUSPENDED:
        notes.append(
            f"it waits for {open_waits(task):,} answers; `waiting_for` shows the first {MOST_WAITS_SHOWN}"
        )
    if waits_for_person(task):
        notes.append(_hold_note(task))
    return notes


def _hold_note(task: Task) -> str:
    """Whether a hold stops `ends_by`, and why."""
    if task.held_since is None:
        return (
            f"{task.owner} was informed and has not accepted the task: ends_by keeps running. "
            "To stop it, accept the task with `task assign`"
        )
    since = moment(task.held_since)
    inside = inside_of(task)
    if inside.held_for:
        return f"ends_by is stopped since {since}: the hold protects the unknown effect {inside.held_for!r}"
    if inside.accepted_by:
        return f"ends_by is stopped since {since}: {inside.accepted_by} accepted to hold the task"
    return f"ends_by is stopped since {since} by the rule of an earlier version, until the next reminder"


def _is_ticking(session: Session, now: int, tick_seconds: float) -> bool:
    """Whether it is a PMO that fires clocks: a live lease is not enough."""
    last = session.ticked_at or session.started_at
    return session.kind == "pmo" and now - last <= LATE_INTERVALS * tick_seconds * SECOND


def _is_gone(holder: Session, now: int) -> bool:
    return holder.ended_at is not None or holder.lease_until <= now


def _holder_notes(holder: Session, now: int) -> list[str]:
    """A heartbeat comes at least twice per lease, so a worker that is silent for half of it is late."""
    since = moment(holder.heartbeat_at)
    if _is_gone(holder, now):
        return [f"the last heartbeat of its worker was at {since}: the turn is reclaimed and offered again"]
    if 2 * (now - holder.heartbeat_at) > holder.lease_until - holder.heartbeat_at:
        until = moment(holder.lease_until)
        return [f"no heartbeat of its worker since {since}: without one, the turn is reclaimed at {until}"]
    return []


def next_move(task: Task, now: int, holder: Session | None) -> tuple[str | None, int | None]:
    """The rule that moves the task next without a person, and when: a start, a clock, or a reclaim."""
    if task.status == s.QUEUED and task.run_at > now and task.run_at < (task.clock_at or task.run_at + 1):
        return "start", task.run_at
    if holder is not None and _is_gone(holder, now):
        return "reclaim", holder.ended_at or holder.lease_until
    return task.clock_rule, task.clock_at


def _error(task: Task) -> dict[str, Any] | None:
    """The last error, without the traceback that `task show` has."""
    error = error_of(task)
    if error is None:
        return None
    fields = {"code": error.code, "type": error.type, "message": error.message}
    return {key: value for key, value in fields.items() if value}


def _holder_shape(session: Session | None) -> dict[str, Any] | None:
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


def executing_steps(task: Task, session: Session | None) -> list[dict[str, Any]]:
    """The steps that its worker has been running for a while, as of the last heartbeat."""
    if session is None:
        return []
    return [
        {"step": step_label(doing.step), "since": moment(doing.since), "worker": session.name}
        for doing in doing_of(session)
        if doing.attempt_id == task.attempt_id
    ]


def _possible_actions(task: Task, waits: set[str]) -> list[str]:
    if task.dead_letter == "open":
        return ["dlq replay", "dlq abandon"]
    if task.superseded_by is not None:
        return []
    if task.status == s.SUSPENDED:
        answers = [action for kind in _ANSWERED_BY if kind in waits for action in _ANSWERED_BY[kind]]
        return [*answers, "task cancel"]
    if task.status == s.BLOCKED and "effect" in waits:
        return ["effect settle", "task assign", "task cancel"]
    return _ACTIONS.get(task.status, ["task retry"])
