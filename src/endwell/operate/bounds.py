"""What is guaranteed about every task of an agent, read off the settings and the clock table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from endwell.machine.clocks import RULES
from endwell.model import status as s
from endwell.model.commands import AgentSpec
from endwell.policy.limits import SECOND, Limits
from endwell.policy.retry import RetryPolicy, backoff, unpack
from endwell.settings import Settings

ALLOWED_TICKS = 2
"""A task must have ended so many ticks of a supervisor after its `ends_by`."""


def bounds(
    settings: Settings, limits: Limits, agents: Sequence[AgentSpec], *, has_stamps: bool
) -> dict[str, Any]:
    """For each agent: how long, how often, and by which rule. `ok`: every bound is kept.

    `has_stamps`: whether the store tells for nothing that there is nothing new, so that looks are frequent.
    """
    # a bell that works and loses every ring is the worst of all
    look = settings.worker.pace_seconds(is_free=has_stamps, is_rung=True)
    items = [_of_agent(settings, limits, spec, look) for spec in agents]
    return {"items": items, "next": None, "ok": all(item["is_kept"] for item in items)}


def _of_agent(settings: Settings, limits: Limits, spec: AgentSpec, look: float) -> dict[str, Any]:
    retry = unpack(spec.retry_policy, limits.retry)
    deadline = _seconds(spec.deadline if spec.deadline is not None else limits.deadline)
    tick = settings.pmo.watchdog_interval_seconds
    parts = _sum(spec, deadline, tick)
    bound = _total(parts)
    return {
        "agent": spec.name,
        "ends_by_seconds": deadline,
        "ended_at_the_latest_seconds": bound,
        "allowed_seconds": deadline + ALLOWED_TICKS * tick,
        "is_kept": bound is not None and bound <= deadline + ALLOWED_TICKS * tick,
        "sum": parts,
        "silent_agent": _silent(settings, limits, retry, look),
        "max_retries": retry.max_retries,
        "max_executions_by_failure": retry.max_retries + 1,
        "max_executions": limits.runaway_limit,
        "crash_limit": limits.crash_limit,
        "crash_window_seconds": _seconds(limits.crash_window),
        "longest_backoff_seconds": _backoffs(retry),
        "concurrency": spec.concurrency,
        "dead_worker_noticed_seconds": settings.worker.lease_seconds + tick,
        "stuck_turn_noticed_seconds": settings.pmo.active_reap_seconds + tick,
        "lost_ring_noticed_seconds": look,
        "clock_acts_within_seconds": tick,
        "statuses": _statuses(limits, deadline),
    }


def _sum(spec: AgentSpec, deadline: float, tick: float) -> list[dict[str, Any]]:
    """What the latest end is made of, from the start time on. A hold that stops `ends_by` is not in it."""
    said_by = "task.deadline_seconds" if spec.deadline is None else "the agent's deadline"
    parts = [_part("until the deadline is over", deadline, f"{said_by}, or what the task was submitted with")]
    for status in s.LIVE:
        if not any(rule.name == "ends_by" and status in rule.when for rule in RULES):
            parts.append(_part(f"a {status} task that no deadline ends", None, "the clock table"))
    looks = ("until a supervisor looks", "until its look has come to the task")
    return [*parts, *(_part(look, tick, "pmo.watchdog_interval_seconds") for look in looks)]


def _silent(settings: Settings, limits: Limits, retry: RetryPolicy, look: float) -> list[dict[str, Any]]:
    """The same for an agent that takes each turn and is never heard of again: retries end it sooner."""
    tick = settings.pmo.watchdog_interval_seconds
    turns = retry.max_retries + 1
    reap = None if limits.active_reap is None else _seconds(limits.active_reap)
    waits = sum(backoff(retry, count, 1.0) for count in range(1, turns)) / SECOND
    return [
        _part(
            f"{turns} turns without progress",
            None if reap is None else turns * reap,
            "pmo.active_reap_seconds",
        ),
        _part(f"{turns} looks of a supervisor", turns * tick, "pmo.watchdog_interval_seconds"),
        _part(f"{retry.max_retries} backoffs", round(waits, 3), "retry.*"),
        _part(
            f"{retry.max_retries} rings that were lost",
            retry.max_retries * look,
            "worker.poll_seconds" if look == settings.worker.poll_seconds else "worker.quiet_poll_seconds",
        ),
    ]


def _part(what: str, seconds: float | None, source: str) -> dict[str, Any]:
    return {"part": what, "seconds": seconds, "from": source}


def _total(parts: list[dict[str, Any]]) -> float | None:
    """Nothing if a part has no end."""
    seconds = [part["seconds"] for part in parts]
    return None if None in seconds else sum(seconds)


def _backoffs(retry: RetryPolicy) -> list[float]:
    """The longest wait before each retry, jitter included; of many retries the first ten."""
    return [
        round(backoff(retry, count, 1.0) / SECOND, 3) for count in range(1, min(retry.max_retries, 10) + 1)
    ]


def _statuses(limits: Limits, deadline: float) -> dict[str, list[dict[str, Any]]]:
    """Per status, its rules in the order in which they are looked at."""
    times = _times(limits, deadline)
    return {
        status: [
            {
                "rule": rule.name,
                "seconds": times[rule.name][0],
                "after": times[rule.name][1],
                "then": rule.then,
            }
            for rule in RULES
            if status in rule.when
        ]
        for status in s.LIVE
    }


def _times(limits: Limits, deadline: float) -> dict[str, tuple[float | None, str]]:
    """How long after what each rule acts; without a number where the task itself says so."""
    remind = _seconds(limits.remind_every)
    grace = _seconds(limits.suspend_grace)
    return {
        "ends_by": (deadline, f"{deadline:g} s after its start time"),
        "guard": (0.0, f"at dispatch {limits.runaway_limit}, or at crash {limits.crash_limit} in the window"),
        "reap": _after(limits.active_reap, "without progress"),
        "dispatch_timeout": _after(limits.dispatch_timeout, "without being taken"),
        "approval_expire": (None, "when the time given for the approval is over"),
        "suspend_cap": (grace, f"{grace:g} s after the latest wait's deadline"),
        "inject_timeout": (None, "at each wait's own deadline"),
        "recover": (None, "when the cooldown is over"),
        "approval_remind": (remind, f"every {remind:g} s"),
        "remind": (remind, f"every {remind:g} s"),
        "ring_again": _after(limits.ring_after, "without being taken, again and again"),
    }


def _after(duration: int | None, what: str) -> tuple[float | None, str]:
    return (
        (None, "switched off")
        if duration is None
        else (_seconds(duration), f"{_seconds(duration):g} s {what}")
    )


def _seconds(duration: int) -> float:
    return duration / SECOND
