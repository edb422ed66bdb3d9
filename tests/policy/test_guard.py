"""The last lines of defence."""

from __future__ import annotations

import pytest

from endwell.policy.guard import cost_of_reclaim, count_crash, is_runaway, is_suspect
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


@pytest.mark.parametrize(
    ("is_alive", "watched_since", "has_left", "cost"),
    [
        (False, 0, False, "crash"),  # dead, whether or not a supervisor watched
        (False, 200, False, "crash"),
        (False, 0, True, "delivery"),  # it left in order and could not hand its turn back
        (True, 0, False, "delivery"),  # it lives, and stood still
        (True, 200, False, "nothing"),  # it lives, and the supervisor was away as well
        (None, 0, False, "crash"),  # on another machine, under a supervisor's eyes
        (None, None, False, "crash"),
        (None, 200, False, "delivery"),  # on another machine, and the supervisor was away
    ],
)
def test_a_reclaim_costs_a_crash_only_if_the_holder_seems_to_have_died(
    is_alive: bool | None, watched_since: int | None, has_left: bool, cost: str
) -> None:
    known = {"is_alive": is_alive, "watched_since": watched_since, "has_left": has_left}
    assert cost_of_reclaim(lapsed_at=100, **known) == cost  # type: ignore[arg-type]
