"""The repeat guard: an agent that repeats itself, or records nothing new, is nudged, then stopped. Pure.

A worker counts what its agent does in a row (`RepeatLimits`); the machine judges the count (`judge`). At the
limit the agent is nudged; at twice the limit it is stopped, if it was nudged before. An agent that waits (for
an answer, a time, a person, a running step) is not judged.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from endwell.policy.limits import Limits

Verdict = Literal["go_on", "nudge", "stop"]
REASON = "no_progress"


def judge(measure: int, limit: int | None, nudges: int, *, stops: bool) -> Verdict:
    """What follows at this `measure`: repeats in a row, or time without news."""
    if limit is None or measure < limit:
        return "go_on"
    if nudges == 0:
        return "nudge"
    return "stop" if stops and measure >= 2 * limit else "go_on"


def judge_rounds(count: int, nudges: int, limits: Limits) -> Verdict:
    """Judge how often the same call, or the same error, came in a row."""
    return judge(count, limits.repeat_limit, nudges, stops=limits.stops_loops)


def judge_silence(without_news: int, nudges: int, limits: Limits) -> Verdict:
    """Judge for how long nothing new was recorded, despite signs of life."""
    return judge(without_news, limits.stall_after, nudges, stops=limits.stops_loops)


class RepeatLimits:
    """Counts how often the same thing happened in a row."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._last: str | None = None
        self._times = Counter[str]()

    @property
    def count(self) -> int:
        """The length of the row."""
        return self._times[""]

    def start_row(self) -> None:
        """Start a new row."""
        self._last = None
        self._times.clear()

    def count_repeat(self, what: str | None, branch: str = "") -> bool:
        """Count it; whether the row has reached the limit, or a multiple of it."""
        if what is None or what != self._last:
            self.start_row()
        self._last = what
        if what is None or self._limit is None:
            return False
        return self._has_grown(branch) and self.count % self._limit == 0

    def _has_grown(self, branch: str) -> bool:
        """Whether the row grows. What branches of one gather do beside each other counts once.

        A gather counts as often as its branch that counts most, as one part of what its own branch did.
        """
        self._times[branch] += 1
        while branch:
            gather = branch.rpartition(".")[0]
            if self._times[branch] <= self._times[f"{gather}."]:
                return False
            self._times[f"{gather}."] += 1
            branch = gather.rpartition(",")[0]
            self._times[branch] += 1
        return True
