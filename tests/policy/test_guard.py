"""The last lines of defence."""

from __future__ import annotations

import pytest

from endwell.policy.guard import count_crash, is_runaway, is_suspect
from endwell.policy.limits import Limits

MINUTE = 60_000_000


@pytest.mark.covers("S2.3", "S2.11")
def test_ten_deliveries_are_a_runaway_and_nine_are_not() -> None:
    limit = Limits().runaway_limit

    assert limit == 10
    assert not is_runaway(9, limit)
    assert is_runaway(10, limit)


def test_the_first_crash_is_one() -> None:
    assert count_crash(None, 5 * MINUTE, 30 * MINUTE) == (1, str(5 * MINUTE))


@pytest.mark.covers("S2.22")
def test_only_crashes_within_the_window_count() -> None:
    times = None
    counts = []
    for minute in (10, 20, 39, 40, 80):
        count, times = count_crash(times, minute * MINUTE, 30 * MINUTE)
        counts.append(count)

    assert counts == [1, 2, 3, 3, 1]
    assert (Limits().crash_limit, Limits().crash_window) == (3, 30 * MINUTE)


def test_old_crashes_are_forgotten_so_that_the_column_stays_short() -> None:
    times = None
    for minute in range(1000):
        _, times = count_crash(times, minute * MINUTE, 30 * MINUTE)

    assert times is not None
    assert len(times.split(",")) == 30


@pytest.mark.parametrize(
    ("crashes", "limit", "expected"),
    [(0, 3, False), (1, 3, False), (2, 3, True), (3, 3, True), (0, 1, False), (1, 1, True), (1, 2, True)],
)
def test_a_task_is_suspect_when_one_more_crash_would_end_it(crashes: int, limit: int, expected: bool) -> None:
    assert is_suspect(crashes, limit) is expected
