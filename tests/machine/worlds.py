"""The worlds that are walked through: small ones to the last state in every run, large ones when asked."""

from __future__ import annotations

from typing import Final

from tests.machine.world import World, small_limits

# every command and every rule; legal retries and crashes stay below the guard
ONE_TASK: Final = World(
    name="one task",
    limits=small_limits(max_retries=1, runaway_limit=6, crash_limit=2),
    submits=({}, {"approval_within": 3}, {"delay": 1}),
    retry_after=(None, 2),
)
# one tick for almost everything, so that two tasks can be walked through together
TWO_TASKS: Final = World(
    name="two tasks of one key",
    tasks=2,
    limits=small_limits(
        max_retries=1, runaway_limit=3, deadline=2, active_reap=1, remind_every=1, crash_window=1
    ),
    waits=((1,),),
)
LOW_GUARD: Final = World(
    name="two tasks, the guard before the last retry",
    tasks=2,
    limits=small_limits(max_retries=2, runaway_limit=2, crash_limit=3, deadline=2, suspend_grace=0),
)
RULES_OFF: Final = World(
    name="one task, rules switched off",
    limits=small_limits(deadline=3, ring_after=None, dispatch_timeout=None, active_reap=None),
    submits=({}, {"approval_within": 2}),
)
SMALL: Final = (ONE_TASK, TWO_TASKS, LOW_GUARD, RULES_OFF)

WITH_APPROVAL: Final = World(
    name="two tasks of one key, with approvals",
    tasks=2,
    limits=small_limits(max_retries=1, deadline=2, active_reap=1, remind_every=1, crash_window=1),
    submits=({}, {"approval_within": 1}),
)
LONG_LIVES: Final = World(
    name="two tasks of one key, long lives",
    tasks=2,
    limits=small_limits(max_retries=2, runaway_limit=6, deadline=3),
    submits=({}, {"approval_within": 2}, {"delay": 1}),
)
LARGE: Final = (WITH_APPROVAL, LONG_LIVES)
