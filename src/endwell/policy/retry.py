"""When a failed turn is tried again. Pure: the jitter fraction comes in with the command.

The arithmetic, written down once: `retry_count` rises by one at each failure, and the task is
given up when it is *greater* than `max_retries`. So `max_retries=3` gives four executions.
"""

from __future__ import annotations

import msgspec

from endwell.model.moments import SECOND

EXHAUSTED = {
    "api_failure": "api_retries_exhausted",
    "agent_asked_for_retry": "continuations_exhausted",
}
"""Failures whose last retry ends the task for a reason of its own."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exponential backoff with jitter, or a list of delays whose last one repeats."""

    max_retries: int = 3
    base_seconds: float = 0.5
    multiplier: float = 2.0
    jitter: float = 0.2
    delays: tuple[float, ...] = ()


class RetryAt(msgspec.Struct, frozen=True):
    """Try again at this time; this is failure number `retry_count`."""

    at: int
    retry_count: int


class GiveUp(msgspec.Struct, frozen=True):
    """Do not try again."""

    reason: str
    retry_count: int


def after_failure(
    policy: RetryPolicy,
    *,
    retry_count: int,
    retryable: bool,
    code: str,
    now: int,
    fraction: float,
    asked_after: int | None = None,
) -> RetryAt | GiveUp:
    """What follows a failed turn of a task that has failed `retry_count` times before."""
    count = retry_count + 1
    if not retryable:
        return GiveUp(code, count)
    if count > policy.max_retries:
        return GiveUp(EXHAUSTED.get(code, "retries_exhausted"), count)
    delay = asked_after if asked_after is not None else backoff(policy, count, fraction)
    return RetryAt(now + delay, count)


def backoff(policy: RetryPolicy, count: int, fraction: float) -> int:
    """Microseconds to wait before retry number `count`; `fraction` in [0, 1) spreads the herd."""
    if policy.delays:
        seconds = policy.delays[min(count, len(policy.delays)) - 1]
    else:
        seconds = policy.base_seconds * policy.multiplier ** min(count - 1, 60)
    spread = 1 + policy.jitter * (2 * fraction - 1)
    return int(min(seconds * spread, LONGEST_BACKOFF_SECONDS) * SECOND)


LONGEST_BACKOFF_SECONDS = 86_400.0
_decoder = msgspec.json.Decoder(RetryPolicy)


def unpack_policy(text: str | None, default: RetryPolicy) -> RetryPolicy:
    """The task's own policy, or the installation's."""
    return default if text is None else _decoder.decode(text)


def pack_policy(policy: RetryPolicy) -> str:
    """A policy as one column's text."""
    return msgspec.json.encode(policy).decode()
