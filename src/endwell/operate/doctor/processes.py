"""Who is at work: workers, supervisors, doorbells, the relay; and whether anything is later than it may."""

from __future__ import annotations

from typing import Any, Final

from endwell.errors import BadSetting
from endwell.model.session import Session, is_foreign
from endwell.operate.bounds import bounds as bounds_of
from endwell.operate.doctor.finding import Finding, Patient
from endwell.pmo.relay.service import CURSOR
from endwell.policy.limits import SECOND, Limits
from endwell.settings import check
from endwell.worker.heart import IDLE_INTERVALS

LATE_INTERVALS: Final = 3
MOST_NAMED: Final = 5


async def settings(patient: Patient) -> list[Finding]:
    """Settings that contradict each other."""
    try:
        check(patient.settings)
    except BadSetting as problem:
        remedy = problem.hint or "`endwell config show` says where each value comes from"
        return [Finding(code="bad_settings", severity="error", message=problem.message, remedy=remedy)]
    return []


async def workers(patient: Patient) -> list[Finding]:
    """Every agent that has work has a live worker, and each worker's own watchdog ticks."""
    found: list[Finding] = []
    if await _is_blind(patient):
        return found  # heartbeats cannot be written: none of them can be seen to live
    now = await patient.store.now()
    for namespace in patient.namespaces:
        sessions = [s for s in await patient.store.open_sessions(namespace) if s.kind == "worker"]
        live = [session for session in sessions if session.lease_until > now]
        found += await _unserved(patient, namespace, live, now)
        found += [_lapsed(namespace, one, now) for one in sessions if one.lease_until <= now]
        late = LATE_INTERVALS * patient.settings.worker.watchdog_interval_seconds
        late += IDLE_INTERVALS * patient.settings.worker.heartbeat_seconds  # which tell the time of a tick
        found += [_late(namespace, one, now) for one in live if _is_late(one, now, late)]
    return found


async def _is_blind(patient: Patient) -> bool:
    """Whether somebody keeps the signs of life from being written; another finding says who."""
    if patient.facts.get("blocked_by") is not None:
        return True
    return any(holder.hides_life for holder in await patient.store.lock_holders())


async def _unserved(patient: Patient, namespace: str, live: list[Session], now: int) -> list[Finding]:
    served = {agent for session in live for agent in session.agents.split()}
    waiting = await patient.store.waiting_by_agent(namespace, now)
    return [
        Finding(
            code="no_live_worker",
            severity="error",
            message=f"{'1 task waits' if count == 1 else f'{count} tasks wait'} for {agent}, "
            "and no live worker serves it",
            remedy=f"start one: endwell worker --app MODULE:NAME --agents {agent}",
            namespace=namespace,
            facts={"agent": agent, "waiting": count},
        )
        for agent, count in waiting.items()
        if agent not in served
    ]


def _lapsed(namespace: str, session: Session, now: int) -> Finding:
    return Finding(
        code="worker_lapsed",
        severity="warning",
        message=f"worker {session.name} ({_place(session)}) was last heard of "
        f"{(now - session.heartbeat_at) / SECOND:.0f} s ago",
        remedy="a PMO takes its tasks back by itself; see why that process stopped",
        namespace=namespace,
        facts={"session": session.id},
    )


def _place(session: Session) -> str:
    return "a foreign one" if is_foreign(session) else f"pid {session.pid} on {session.host}"


def _is_late(session: Session, now: int, seconds: float) -> bool:
    """A foreign worker has no watchdog that could be late."""
    return not is_foreign(session) and now - (session.ticked_at or session.started_at) > seconds * SECOND


def _late(namespace: str, session: Session, now: int) -> Finding:
    age = (now - (session.ticked_at or session.started_at)) / SECOND
    return Finding(
        code="watchdog_late",
        severity="warning",
        message=f"the watchdog of worker {session.name} has not ticked for {age:.0f} s",
        remedy="its event loop may be blocked: look at its log, restart it; other workers' watchdogs step in",
        namespace=namespace,
        facts={"session": session.id},
    )


async def supervisors(patient: Patient) -> list[Finding]:
    """Some PMO has ticked within three intervals. Where nothing runs or waits, it is only worth a word."""
    found: list[Finding] = []
    if await _is_blind(patient):
        return found  # ticks cannot be written either
    now = await patient.store.now()
    patience = LATE_INTERVALS * patient.settings.pmo.watchdog_interval_seconds
    for namespace in patient.namespaces:
        last = await patient.store.last_tick(namespace)
        age = None if last is None else (now - last) / SECOND
        if age is not None and age <= patience:
            continue
        counted = await patient.store.tallies(namespace)
        is_needed = counted[0] > counted[1] or bool(await patient.store.open_sessions(namespace))
        found.append(_unsupervised(namespace, age, patience, is_needed))
    return found


def _unsupervised(namespace: str, age: float | None, patience: float, is_needed: bool) -> Finding:
    ticked = "has ever ticked" if age is None else f"has ticked for {age:.0f} s"
    return Finding(
        code="no_supervisor",
        severity="error" if is_needed else "warning",
        message=f"no PMO {ticked} (expected within {patience:g} s): no clock fires",
        remedy="start one anywhere, it takes over at once: endwell pmo",
        namespace=namespace,
        facts={"seconds": age},
    )


async def bounds(patient: Patient) -> list[Finding]:
    """Every agent's bound is within two ticks of `ends_by`, and no clock is overdue by more than that."""
    found = []
    now = await patient.store.now()
    tick = int(patient.settings.pmo.watchdog_interval_seconds * SECOND)
    limits = Limits.of(patient.settings, patient.settings.human.owner)
    has_stamps = patient.store.has_stamps
    for namespace in patient.namespaces:
        agents = await patient.store.agents(namespace)
        items = bounds_of(patient.settings, limits, agents, has_stamps=has_stamps)["items"]
        found += [_too_late(namespace, item) for item in items if not item["is_kept"]]
        overdue = await patient.store.due(namespace, now - 2 * tick, (-1, ""), MOST_NAMED)
        if overdue:
            age = (now - overdue[0][1]) / SECOND
            found.append(
                Finding(
                    code="bound_exceeded",
                    severity="error",
                    message=f"the clock of task {overdue[0][0]} should have acted {age:.0f} s ago",
                    remedy="see whether a PMO runs and keeps up; endwell why TASK",
                    namespace=namespace,
                    facts={"tasks": [task_id for task_id, _ in overdue]},
                )
            )
    return found


def _too_late(namespace: str, item: dict[str, Any]) -> Finding:
    latest = item["ended_at_the_latest_seconds"]
    when = "never" if latest is None else f"{latest:g} s after its start"
    return Finding(
        code="bound_too_late",
        severity="error",
        message=f"a task of {item['agent']} might end {when}; {item['allowed_seconds']:g} s are allowed",
        remedy="endwell bounds --app MODULE:NAME shows the sum; mend the setting that its largest part names",
        namespace=namespace,
        facts={"agent": item["agent"], "seconds": latest, "sum": item["sum"]},
    )


async def doorbells(patient: Patient) -> list[Finding]:
    """Rings pass between processes; without that, work is found by polling."""
    bell = patient.bell
    if bell.connected:
        return []
    return [
        Finding(
            code="doorbell_down",
            severity="warning",
            message=f"the {bell.kind} doorbell carries no rings: {bell.last_error or 'not connected'}",
            remedy="see whether its server runs; meanwhile polling finds the work, a little later",
            facts={"kind": bell.kind},
        )
    ]


async def relay(patient: Patient) -> list[Finding]:
    """What is to be told outside was told not long ago."""
    found = []
    now = await patient.store.now()
    for namespace in patient.namespaces:
        cursor = await patient.store.cursor(namespace, CURSOR)
        if cursor is None and not patient.settings.relay.kind:
            continue
        untold_since = await patient.store.oldest_after(namespace, cursor.position if cursor else "")
        lag = 0.0 if untold_since is None else (now - untold_since) / SECOND
        if lag > patient.settings.relay.lag_seconds:
            trouble = cursor.trouble if cursor else "no relay has run yet"
            found.append(_lagging(namespace, lag, trouble))
    return found


def _lagging(namespace: str, lag: float, trouble: str | None) -> Finding:
    return Finding(
        code="relay_lagging",
        severity="error",
        message=f"the outside was not told yet what happened {lag:.0f} s ago: {trouble or 'nobody relays'}",
        remedy="see whether the receiver answers and a PMO with the [relay] settings runs; nothing is lost; "
        "past what it will never take: endwell relay skip EVENT --as NAME",
        namespace=namespace,
        facts={"seconds": round(lag, 3), "trouble": trouble},
    )
