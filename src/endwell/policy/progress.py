"""The progress guard: an agent that goes round in circles while looking busy is told so, then stopped. Pure.

A worker counts what its agent does in a row (`RepeatLimits`); the machine judges the count (`judge`). At the
limit the agent is nudged; at twice the limit it is stopped, never without having been nudged before. An agent
that waits for something it has named (an answer, a time, a person, a running step) is not judged at all.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from endwell.policy.limits import Limits

Verdict = Literal["go_on", "nudge", "stop"]
REASON = "no_progress"


def judge(measure: int, limit: int | None, nudges: int, *, stops: bool) -> Verdict:
    """What follows when so much of `measure` (rounds, or time without news) has come together."""
    if limit is None or measure < limit:
        return "go_on"
    if nudges == 0:
        return "nudge"
    return "stop" if stops and measure >= 2 * limit else "go_on"


def judge_rounds(count: int, nudges: int, limits: Limits) -> Verdict:
    """The same call, or the same error, so many times in a row."""
    return judge(count, limits.repeat_limit, nudges, stops=limits.stops_loops)


def judge_silence(without_news: int, nudges: int, limits: Limits) -> Verdict:
    """Signs of life, and nothing new recorded for so long."""
    return judge(without_news, limits.stall_after, nudges, stops=limits.stops_loops)


class RepeatLimits:
    """How often the same thing has happened in a row. Another thing begins a new row."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._last: str | None = None
        self._times = Counter[str]()

    @property
    def count(self) -> int:
        """How long the row is."""
        return self._times[""]

    def begin_anew(self) -> None:
        """Whatever comes next is the first of its row."""
        self._last = None
        self._times.clear()

    def note(self, what: str | None, branch: str = "") -> bool:
        """Whether this makes a row that somebody should hear of: at the limit, and at each multiple of it."""
        if what is None or what != self._last:
            self.begin_anew()
        self._last = what
        if what is None or self._limit is None:
            return False
        return self._has_grown(branch) and self.count % self._limit == 0

    def _has_grown(self, branch: str) -> bool:
        """Whether the row is longer by it. What branches of one gather do beside each other counts once.

        A gather counts as often as the branch of it that counts most, as one part of what its own branch did.
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
