"""Figures for Prometheus. Cheap: no task is counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from endwell.model.moments import SECOND
from endwell.pmo.relay.service import relay_lag
from endwell.policy.limits import LATE_INTERVALS
from endwell.settings import Settings
from endwell.store.contract import Store

_HELP: Final = {
    "endwell_tasks_accepted_total": ("counter", "Tasks accepted so far, as counted in their commits."),
    "endwell_tasks_ended_total": ("counter", "Tasks that have ended, as counted in their commits."),
    "endwell_tasks_live": ("gauge", "Tasks accepted and not ended."),
    "endwell_workers_live": ("gauge", "Workers with a live lease."),
    "endwell_supervised": ("gauge", "1 if a PMO has ticked within three intervals, else 0."),
    "endwell_supervisor_tick_age_seconds": ("gauge", "Seconds since a PMO last finished a tick."),
    "endwell_relay_lag_seconds": ("gauge", "Age of the oldest event that was not sent yet."),
}


async def metrics(store: Store, namespaces: Iterable[str], settings: Settings) -> str:
    """The figures as text."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}
    for namespace in namespaces:
        for name, value in (await _of_namespace(store, namespace, settings)).items():
            samples[name].append(f'{name}{{namespace="{namespace}"}} {value:g}')
    lines: list[str] = []
    for name, (kind, what) in _HELP.items():
        if samples[name]:
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}", *samples[name]]
    return "\n".join(lines)


async def _of_namespace(store: Store, namespace: str, settings: Settings) -> dict[str, float]:
    now = await store.now()
    accepted, ended = await store.task_tallies(namespace)
    sessions = await store.open_sessions(namespace)
    live = [session for session in sessions if session.kind == "worker" and session.lease_until > now]
    ticked = await store.last_tick(namespace)
    patience = LATE_INTERVALS * settings.pmo.watchdog_interval_seconds * SECOND
    found: dict[str, float] = {
        "endwell_tasks_accepted_total": accepted,
        "endwell_tasks_ended_total": ended,
        "endwell_tasks_live": accepted - ended,
        "endwell_workers_live": len(live),
        "endwell_supervised": float(ticked is not None and now - ticked <= patience),
    }
    if ticked is not None:
        found["endwell_supervisor_tick_age_seconds"] = (now - ticked) / SECOND
    behind = await relay_lag(store, namespace, now)
    if behind is not None:
        found["endwell_relay_lag_seconds"] = behind / SECOND
    return found
