"""The progress guard: nudge first, then stop, and never by default against who waits."""

from __future__ import annotations

import pytest

from endwell.model.moments import SECOND
from endwell.policy.limits import Limits
from endwell.policy.progress import RepeatLimits, judge_rounds, judge_silence

LIMITS = Limits(repeat_limit=3, stall_after=60 * SECOND)


@pytest.mark.parametrize(
    ("count", "nudges", "verdict"),
    [
        (2, 0, "go_on"),
        (3, 0, "nudge"),
        (3, 1, "go_on"),
        (5, 1, "go_on"),
        (6, 1, "stop"),
        (60, 0, "nudge"),  # an agent that was never nudged is nudged first
    ],
)
def test_an_agent_is_nudged_at_the_limit_and_stopped_at_twice_the_limit(
    count: int, nudges: int, verdict: str
) -> None:
    assert judge_rounds(count, nudges, LIMITS) == verdict


@pytest.mark.parametrize(
    ("seconds", "nudges", "verdict"),
    [(59, 0, "go_on"), (60, 0, "nudge"), (119, 1, "go_on"), (120, 1, "stop")],
)
def test_an_agent_that_only_gives_signs_of_life_is_nudged_and_stopped(
    seconds: int, nudges: int, verdict: str
) -> None:
    assert judge_silence(seconds * SECOND, nudges, LIMITS) == verdict


def test_the_repeat_guard_can_be_off_or_only_nudge() -> None:
    off = Limits(repeat_limit=None, stall_after=None)
    mild = Limits(repeat_limit=3, stall_after=60 * SECOND, stops_loops=False)

    assert {judge_rounds(999, nudges, off) for nudges in (0, 1)} == {"go_on"}
    assert judge_silence(10**15, 1, off) == "go_on"
    assert [judge_rounds(999, nudges, mild) for nudges in (0, 1)] == ["nudge", "go_on"]


def test_a_row_is_broken_by_anything_else() -> None:
    rounds = RepeatLimits(3)

    assert [rounds.count_repeat(what) for what in "aabaaa"] == [False] * 5 + [True]
    again = [rounds.count_repeat(what) for what in "aaa"]
    assert again == [False, False, True], "and again at twice the limit"
    assert rounds.count == 6
    assert not rounds.count_repeat(None)
    assert rounds.count == 0


def test_without_a_limit_nothing_is_ever_due() -> None:
    rounds = RepeatLimits(None)

    assert not any(rounds.count_repeat("a") for _ in range(100))


def test_nothing_has_happened_before_anything_has() -> None:
    assert RepeatLimits(3).count == 0
    assert not RepeatLimits(1).count_repeat(None)
    assert RepeatLimits(1).count_repeat("a")
