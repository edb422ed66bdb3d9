"""Bounds: by when and how often tasks of an agent run, read off the settings and the clock table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from endwell.machine.clocks import RULES
from endwell.model import status as s
from endwell.model.commands import AgentSpec
from endwell.model.moments import SECOND
from endwell.policy.limits import Limits
from endwell.policy.retry import RetryPolicy, backoff, unpack_policy
from endwell.settings import Settings

ALLOWED_TICKS = 2
"""A task must have ended this many ticks of a PMO after its `ends_by`."""
MOST_BACKOFFS = 10

Parts = list[dict[str, Any]]
"""Durations that add up, each with the setting that it comes from."""


def compute_bounds(
    settings: Settings, limits: Limits, agents: Sequence[AgentSpec], *, has_stamps: bool
) -> dict[str, Any]:
    """For each agent: how long, how often, and by which rule. `ok`: every bound is kept.

    `has_stamps`: whether the store can say cheaply that nothing changed, so that workers look often.
    """
    # a doorbell that is connected and loses every ring is the worst case
    look = settings.worker.pace_seconds(is_free=has_stamps, is_rung=True)
    items = [_bounds_of(settings, limits, spec, look) for spec in agents]
    return {"items": items, "next": None, "ok": all(item["is_kept"] for item in items)}


def _bounds_of(settings: Settings, limits: Limits, spec: AgentSpec, look: float) -> dict[str, Any]:
    retry = unpack_policy(spec.retry_policy, limits.retry)
    deadline = _in_seconds(spec.deadline if spec.deadline is not None else limits.deadline)
    tick = settings.pmo.watchdog_interval_seconds
    parts = _latest_end(spec, deadline, tick)
    seconds = [part["seconds"] for part in parts]
    latest = None if None in seconds else sum(seconds)
    allowed = deadline + ALLOWED_TICKS * tick
    return {
        "agent": spec.name,
        "ends_by_seconds": deadline,
        "ended_at_the_latest_seconds": latest,
        "allowed_seconds": allowed,
        "is_kept": latest is not None and latest <= allowed,
        "sum": parts,
        "silent_agent": _silent_agent(settings, limits, retry, look),
        "max_retries": retry.max_retries,
        "max_executions_by_failure": retry.max_retries + 1,
        "max_executions": limits.runaway_limit,
        "crash_limit": limits.crash_limit,
        "crash_window_seconds": _in_seconds(limits.crash_window),
        "longest_backoff_seconds": [
            round(backoff(retry, count, 1.0) / SECOND, 3)
            for count in range(1, min(retry.max_retries, MOST_BACKOFFS) + 1)
        ],
        "concurrency": spec.concurrency,
        "dead_worker_noticed_seconds": settings.worker.lease_seconds + tick,
        "stuck_turn_noticed_seconds": settings.pmo.active_reap_seconds + tick,
        "lost_ring_noticed_seconds": look,
        "clock_acts_within_seconds": tick,
        "statuses": _rules_by_status(limits, deadline),
    }


def _latest_end(spec: AgentSpec, deadline: float, tick: float) -> Parts:
    """The parts of the latest end, counted from the start time. A hold that stops `ends_by` is not in it."""
    source = "task.deadline_seconds" if spec.deadline is None else "the agent's deadline"
    parts = [_part_of("until the deadline", deadline, f"{source}, or the deadline given at submission")]
    for status in s.LIVE:
        if not any(rule.name == "ends_by" and status in rule.when for rule in RULES):
            parts.append(_part_of(f"a {status} task that no deadline ends", None, "the clock table"))
    looks = ("until a PMO ticks", "until the tick comes to the task")
    return [*parts, *(_part_of(look, tick, "pmo.watchdog_interval_seconds") for look in looks)]


def _silent_agent(
    settings: Settings, limits: Limits, retry: RetryPolicy, look: float
) -> list[dict[str, Any]]:
    """The parts for an agent that takes each turn and never reports progress: retries end it sooner."""
    tick = settings.pmo.watchdog_interval_seconds
    retries, turns = retry.max_retries, retry.max_retries + 1
    reap = None if limits.active_reap is None else turns * _in_seconds(limits.active_reap)
    backoffs = sum(backoff(retry, count, 1.0) for count in range(1, turns)) / SECOND
    poll = "poll_seconds" if look == settings.worker.poll_seconds else "quiet_poll_seconds"
    return [
        _part_of(f"{turns} turns without progress", reap, "pmo.active_reap_seconds"),
        _part_of(f"{turns} ticks of a PMO", turns * tick, "pmo.watchdog_interval_seconds"),
        _part_of(f"{retries} backoffs", round(backoffs, 3), "retry.*"),
        _part_of(f"{retries} lost rings", retries * look, f"worker.{poll}"),
    ]


def _part_of(what: str, seconds: float | None, source: str) -> dict[str, Any]:
    return {"part": what, "seconds": seconds, "from": source}


def _rules_by_status(limits: Limits, deadline: float) -> dict[str, list[dict[str, Any]]]:
    """For each status its rules, in the order of the clock table."""
    times = _rule_times(limits, deadline)
    return {
        status: [
            {"rule": rule.name, "seconds": seconds, "after": after, "then": rule.text}
            for rule in RULES
            if status in rule.when
            for seconds, after in [times[rule.name]]
        ]
        for status in s.LIVE
    }


def _rule_times(limits: Limits, deadline: float) -> dict[str, tuple[float | None, str]]:
    """After how many seconds each rule acts; None where the task itself says so."""
    remind, grace = _in_seconds(limits.remind_every), _in_seconds(limits.suspend_grace)
    return {
        "ends_by": (deadline, f"{deadline:g} s after its start time"),
        "guard": (0.0, f"at dispatch {limits.runaway_limit}, or at crash {limits.crash_limit} in the window"),
        "reap": _after_text(limits.active_reap, "without progress"),
        "dispatch_timeout": _after_text(limits.dispatch_timeout, "without a claim"),
        "approval_expire": (None, "when the approval's time is over"),
        "suspend_cap": (grace, f"{grace:g} s after the latest wait's deadline"),
        "inject_timeout": (None, "at each wait's own deadline"),
        "recover": (None, "when the cooldown is over"),
        "approval_remind": (remind, f"every {remind:g} s"),
        "remind": (remind, f"every {remind:g} s"),
        "ring_again": _after_text(limits.ring_after, "without a claim, repeatedly"),
    }


def _after_text(duration: int | None, what: str) -> tuple[float | None, str]:
    if duration is None:
        return None, "switched off"
    return _in_seconds(duration), f"{_in_seconds(duration):g} s {what}"


def _in_seconds(duration: int) -> float:
    return duration / SECOND
