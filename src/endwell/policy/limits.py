"""The limits that decisions are made by: settings, as integers of microseconds and counts."""

from __future__ import annotations

import msgspec

from endwell.model.moments import SECOND
from endwell.policy.retry import RetryPolicy
from endwell.settings import Settings

LATE_INTERVALS = 3
"""Ticks that a PMO, or a worker's watchdog, may miss before it counts as away."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in microseconds; `None` switches a rule off where that is allowed.

    `waits_in_row`: a turn that waits for more answers than this has a row for each of them instead.
    """

    retry: RetryPolicy = RetryPolicy()
    deadline: int = 86_400 * SECOND
    ring_after: int | None = 10 * SECOND
    dispatch_timeout: int | None = 30 * SECOND
    active_reap: int | None = 300 * SECOND
    suspend_grace: int = 30 * SECOND
    step_grace: int = 30 * SECOND
    effect_margin: int = 5 * SECOND
    remind_every: int = 86_400 * SECOND
    runaway_limit: int = 10
    crash_limit: int = 3
    crash_window: int = 1800 * SECOND
    repeat_limit: int | None = 10
    stall_after: int | None = 1800 * SECOND
    stops_loops: bool = True
    waits_in_row: int = 32
    owner: str = "operator"

    @classmethod
    def of(cls, settings: Settings, owner: str) -> Limits:
        """The limits that an installation's settings come to."""
        pmo, retry = settings.pmo, settings.retry
        return cls(
            retry=RetryPolicy(
                max_retries=retry.max_retries,
                base_seconds=retry.base_seconds,
                multiplier=retry.multiplier,
                jitter=retry.jitter,
                delays=tuple(retry.delays),
            ),
            deadline=_microseconds(settings.task.deadline_seconds),
            ring_after=_or_off(pmo.dispatched_retry_seconds),
            dispatch_timeout=_or_off(pmo.dispatched_timeout_seconds),
            active_reap=_or_off(pmo.active_reap_seconds),
            suspend_grace=_microseconds(settings.worker.suspend_timeout_seconds),
            step_grace=_microseconds(settings.worker.lease_seconds),
            effect_margin=_microseconds(settings.worker.effect_margin_seconds),
            remind_every=_microseconds(settings.human.remind_seconds),
            runaway_limit=pmo.runaway_limit,
            crash_limit=pmo.crash_limit,
            crash_window=_microseconds(pmo.crash_window_seconds),
            repeat_limit=settings.progress.repeat_limit or None,
            stall_after=_or_off(settings.progress.stall_seconds),
            stops_loops=settings.progress.action == "stop",
            owner=owner,
        )


def _microseconds(seconds: float) -> int:
    return int(seconds * SECOND)


def _or_off(seconds: float) -> int | None:
    return _microseconds(seconds) if seconds > 0 else None
