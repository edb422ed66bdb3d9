"""Checks of processes: workers, PMOs, doorbells and the relay are alive and on time."""

from __future__ import annotations

from typing import Final

from endwell.errors import BadSetting
from endwell.model.moments import SECOND
from endwell.model.session import Session, is_foreign
from endwell.operate.bounds import compute_bounds
from endwell.operate.doctor.finding import Finding, Patient, error_of, warn_of
from endwell.pmo.relay.service import CURSOR
from endwell.policy.limits import LATE_INTERVALS, Limits
from endwell.settings import check
from endwell.worker.heartbeat import IDLE_INTERVALS

MOST_NAMED: Final = 5


async def check_settings(patient: Patient) -> list[Finding]:
    """No setting contradicts another."""
    try:
        check(patient.settings)
    except BadSetting as problem:
        remedy = problem.hint or "`endwell config show` says where each value comes from"
        return [error_of("bad_settings", problem.message, remedy)]
    return []


async def check_workers(patient: Patient) -> list[Finding]:
    """Every agent with work has a live worker, and each worker's watchdog ticks."""
    found: list[Finding] = []
    if await patient.is_blocked():
        return found  # no heartbeat can be stored
    now = await patient.store.now()
    worker = patient.settings.worker
    patience = LATE_INTERVALS * worker.watchdog_interval_seconds
    patience += IDLE_INTERVALS * worker.heartbeat_seconds  # a heartbeat brings the time of a tick
    for namespace in patient.namespaces:
        sessions = [s for s in await patient.store.open_sessions(namespace) if s.kind == "worker"]
        live = [session for session in sessions if session.lease_until > now]
        found += await _unserved_agents(patient, namespace, live, now)
        found += [
            _lapsed_worker(namespace, session, now) for session in sessions if session.lease_until <= now
        ]
        for session in live:
            age = (now - (session.ticked_at or session.started_at)) / SECOND
            if age > patience and not is_foreign(session):  # which has no watchdog
                found.append(_late_watchdog(namespace, session, age))
    return found


async def _unserved_agents(patient: Patient, namespace: str, live: list[Session], now: int) -> list[Finding]:
    served = {agent for session in live for agent in session.agents.split()}
    waiting = await patient.store.waiting_by_agent(namespace, now)
    return [
        error_of(
            "no_live_worker",
            f"{'1 task waits' if count == 1 else f'{count} tasks wait'} for {agent}, "
            "and no live worker serves it",
            f"start one: endwell worker --app MODULE:NAME --agents {agent}",
            namespace=namespace,
            agent=agent,
            waiting=count,
        )
        for agent, count in waiting.items()
        if agent not in served
    ]


def _lapsed_worker(namespace: str, session: Session, now: int) -> Finding:
    age = (now - session.heartbeat_at) / SECOND
    return warn_of(
        "worker_lapsed",
        f"the last heartbeat of worker {session.name} ({_place_of(session)}) was {age:.0f} s ago",
        "a PMO reclaims its tasks by itself; find out why that process stopped",
        namespace=namespace,
        session=session.id,
    )


def _place_of(session: Session) -> str:
    return "a foreign worker" if is_foreign(session) else f"pid {session.pid} on {session.host}"


def _late_watchdog(namespace: str, session: Session, age: float) -> Finding:
    return warn_of(
        "watchdog_late",
        f"the watchdog of worker {session.name} has not ticked for {age:.0f} s",
        "its event loop may be blocked: look at its log and restart it; other workers' watchdogs step in",
        namespace=namespace,
        session=session.id,
    )


async def check_supervisors(patient: Patient) -> list[Finding]:
    """A PMO has ticked within three intervals. Only a warning where no task and no process needs one."""
    found: list[Finding] = []
    if await patient.is_blocked():
        return found  # no tick can be stored
    now = await patient.store.now()
    patience = LATE_INTERVALS * patient.settings.pmo.watchdog_interval_seconds
    for namespace in patient.namespaces:
        last = await patient.store.last_tick(namespace)
        age = None if last is None else (now - last) / SECOND
        if age is not None and age <= patience:
            continue
        accepted, ended = await patient.store.task_tallies(namespace)
        is_needed = accepted > ended or bool(await patient.store.open_sessions(namespace))
        found.append(_unsupervised_namespace(namespace, age, patience, is_needed))
    return found


def _unsupervised_namespace(namespace: str, age: float | None, patience: float, is_needed: bool) -> Finding:
    ticked = "has ever ticked" if age is None else f"has ticked for {age:.0f} s"
    finding = error_of if is_needed else warn_of
    return finding(
        "no_supervisor",
        f"no PMO (supervisor process) {ticked} (expected within {patience:g} s): no clock fires",
        "start one on any machine, it takes over at once: endwell pmo",
        namespace=namespace,
        seconds=age,
    )


async def check_bounds(patient: Patient) -> list[Finding]:
    """Every agent's bound is within two ticks of `ends_by`, and no clock is overdue by more than that."""
    found = []
    now = await patient.store.now()
    tick = int(patient.settings.pmo.watchdog_interval_seconds * SECOND)
    limits = Limits.of(patient.settings, patient.settings.human.owner)
    for namespace in patient.namespaces:
        agents = await patient.store.agents(namespace)
        items = compute_bounds(patient.settings, limits, agents, has_stamps=patient.store.has_stamps)["items"]
        for item in items:
            if not item["is_kept"]:
                latest = item["ended_at_the_latest_seconds"]
                when = "never" if latest is None else f"{latest:g} s after its start"
                found.append(
                    error_of(
                        "bound_too_late",
                        f"a task of {item['agent']} might end {when}; "
                        f"{item['allowed_seconds']:g} s are allowed",
                        "endwell bounds --app MODULE:NAME shows the sum; change the setting that its largest "
                        "part names",
                        namespace=namespace,
                        agent=item["agent"],
                        seconds=latest,
                        sum=item["sum"],
                    )
                )
        if overdue := await patient.store.due(namespace, now - 2 * tick, (-1, ""), MOST_NAMED):
            age = (now - overdue[0][1]) / SECOND
            found.append(
                error_of(
                    "bound_exceeded",
                    f"the clock of task {overdue[0][0]} should have fired {age:.0f} s ago",
                    "see whether a PMO runs and keeps up; endwell why TASK",
                    namespace=namespace,
                    tasks=[task_id for task_id, _ in overdue],
                )
            )
    return found


async def check_doorbells(patient: Patient) -> list[Finding]:
    """Rings reach other processes; without them, work is found by polling."""
    bell = patient.bell
    if bell.connected:
        return []
    return [
        warn_of(
            "doorbell_down",
            f"the {bell.kind} doorbell carries no rings: {bell.last_error or 'not connected'}",
            "see whether its server runs; until then polling finds the work, a little later",
            kind=bell.kind,
        )
    ]


async def check_relay(patient: Patient) -> list[Finding]:
    """The relay sends events soon after they were committed."""
    found = []
    now = await patient.store.now()
    for namespace in patient.namespaces:
        cursor = await patient.store.cursor(namespace, CURSOR)
        if cursor is None and not patient.settings.relay.kind:
            continue
        since = await patient.store.oldest_after(namespace, cursor.position if cursor else "")
        lag = 0.0 if since is None else (now - since) / SECOND
        if lag > patient.settings.relay.lag_seconds:
            trouble = cursor.trouble if cursor else "no relay has run yet"
            found.append(
                error_of(
                    "relay_lagging",
                    f"an event of {lag:.0f} s ago was not sent yet: {trouble or 'no check_relay runs'}",
                    "see whether the receiver answers and a PMO with the [relay] settings runs; "
                    "nothing is lost. "
                    "To leave out an event that the receiver refuses: endwell relay skip EVENT --as NAME",
                    namespace=namespace,
                    seconds=round(lag, 3),
                    trouble=trouble,
                )
            )
    return found
