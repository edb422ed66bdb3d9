"""The last lines of defence: a task that is delivered again and again, and one that kills its workers."""

from __future__ import annotations

RUNAWAY = "runaway_guard"
CRASHES = "crash_limit"


def is_runaway(dispatch_count: int, limit: int) -> bool:
    """Whether a task has been delivered so often that it must be a loop."""
    return dispatch_count >= limit


def count_crash(crash_times: str | None, now: int, window: int) -> tuple[int, str]:
    """The crashes within the window, this one included, and their times as one column's text."""
    times = [int(at) for at in crash_times.split(",")] if crash_times else []
    recent = [at for at in times if at > now - window] + [now]
    return len(recent), ",".join(map(str, recent))


def is_suspect(crash_count: int, limit: int) -> bool:
    """Whether one more crash would end the task. A worker runs at most one such task at a time, so that
    the innocent neighbours of a task that kills its worker are not counted down with it."""
    return 0 < crash_count >= limit - 1
