"""Combinations of settings that could not work, refused before anything starts."""

from __future__ import annotations

from endwell.errors import BadSetting
from endwell.settings.sections import Settings

SHORTEST_LEASE_SECONDS = 0.1


def check(settings: Settings) -> None:
    """Raise BadSetting, with the values and the reason, if the settings contradict each other."""
    _lease_outlives_heartbeats(settings)
    _retries_end_before_the_runaway_guard(settings)
    _dispatch_is_repeated_before_it_times_out(settings)


def _lease_outlives_heartbeats(settings: Settings) -> None:
    lease, heartbeat = settings.worker.lease_seconds, settings.worker.heartbeat_seconds
    if lease < SHORTEST_LEASE_SECONDS:
        said = _said(settings, "worker.lease_seconds")
        raise BadSetting(
            f"{said} must be at least {SHORTEST_LEASE_SECONDS}: a shorter lease lapses by itself.",
            field="worker.lease_seconds",
        )
    if heartbeat >= lease / 2:
        raise BadSetting(
            f"{_said(settings, 'worker.heartbeat_seconds')} must be shorter than half of "
            f"{_said(settings, 'worker.lease_seconds')}, that is {lease / 2:g}: "
            "one late heartbeat must not cost the lease.",
            field="worker.heartbeat_seconds",
        )


def _retries_end_before_the_runaway_guard(settings: Settings) -> None:
    retries, crashes = settings.retry.max_retries, settings.pmo.crash_limit
    legal = retries + 1 + crashes
    if legal >= settings.pmo.runaway_limit:
        raise BadSetting(
            f"A task may legally run {retries} + 1 + {crashes} = {legal} times "
            f"({_said(settings, 'retry.max_retries')}, the first run, {_said(settings, 'pmo.crash_limit')}), "
            f"but {_said(settings, 'pmo.runaway_limit')} would end it as a runaway first; "
            f"the limit must be above {legal}.",
            field="pmo.runaway_limit",
        )


def _dispatch_is_repeated_before_it_times_out(settings: Settings) -> None:
    ring, timeout = settings.pmo.dispatched_retry_seconds, settings.pmo.dispatched_timeout_seconds
    if ring > 0 and timeout > 0 and ring >= timeout:
        raise BadSetting(
            f"{_said(settings, 'pmo.dispatched_retry_seconds')} must be shorter than "
            f"{_said(settings, 'pmo.dispatched_timeout_seconds')}: "
            "a dispatch would time out before its worker is rung a second time.",
            field="pmo.dispatched_retry_seconds",
        )


def _said(settings: Settings, key: str) -> str:
    return f"{key} = {settings.value(key):g} ({settings.source(key)})"
