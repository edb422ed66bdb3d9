"""The last lines of defence: limits on deliveries of tasks and messages, and on crashes of workers."""

from __future__ import annotations

from typing import Final, Literal

Cost = Literal["crash", "delivery", "nothing"]
"""What a reclaim adds to a task's counters: a crash and a delivery, a delivery, or neither."""
RUNAWAY = "runaway_guard"
CRASHES = "crash_limit"
DELIVERY_RETRIES: Final = 5
"""Deliveries of a message by watchdogs, after the first one by the commit that sent it."""
DELIVERY_FAILED: Final = "delivery_failed"


def is_runaway(dispatch_count: int, limit: int) -> bool:
    """Whether a task was delivered too often, so that it must be a loop."""
    return dispatch_count >= limit


def count_crash(crash_times: str | None, now: int, window: int) -> tuple[int, str]:
    """The crashes within the window, this one included, and their times as one column's text."""
    times = [int(at) for at in crash_times.split(",")] if crash_times else []
    recent = [at for at in times if at > now - window] + [now]
    return len(recent), ",".join(map(str, recent))


def cost_of_reclaim(
    *, is_alive: bool | None, watched_since: int | None, lapsed_at: int | None, has_left: bool
) -> Cost:
    """What a reclaim costs the task, if the holder's lease lapsed at `lapsed_at`.

    A crash is a process that died. Where the process table cannot say (`is_alive` is None), a supervisor that
    watched the lease lapse counts a crash; a supervisor that got answers from the store only since then
    (`watched_since`) cannot know, as the holder may have lived through the same outage. A holder that is
    known to live costs the task nothing then. In all other cases the delivery counts, so that the runaway
    guard ends a loop.
    """
    was_watched = watched_since is None or lapsed_at is None or watched_since <= lapsed_at
    if is_alive:
        return "delivery" if was_watched else "nothing"
    if is_alive is None and not was_watched:
        return "delivery"
    return "delivery" if has_left else "crash"


def suspect_crashes(limit: int) -> int:
    """How many crashes make a task suspect: one more would end it.

    A worker runs at most one such task at a time, so that a crash is not counted against its neighbours.
    """
    return max(limit - 1, 1)


def is_suspect(crash_count: int, limit: int) -> bool:
    """Whether one more crash would end the task."""
    return crash_count >= suspect_crashes(limit)


def is_exhausted(retry_count: int) -> bool:
    """Whether a message was delivered too often, each time ended by an error or the end of the process."""
    return retry_count >= DELIVERY_RETRIES
