"""The system's clock counts microseconds; a manual one moves only when told."""

from __future__ import annotations

import time

import pytest

from endwell.runtime import SystemClock
from tests.support.manual_clock import ManualClock


def test_the_system_clock_counts_microseconds_since_1970() -> None:
    before = time.time_ns() // 1000
    assert before <= SystemClock().now_us() <= time.time_ns() // 1000


def test_the_monotonic_clock_does_not_run_back() -> None:
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()


def test_advancing_a_manual_clock_moves_both_times() -> None:
    clock = ManualClock(1_000_000)
    clock.advance(2.5)
    assert (clock.now_us(), clock.monotonic()) == (3_500_000, 2.5)


def test_setting_a_manual_clock_forward_moves_both_times() -> None:
    clock = ManualClock(1_000_000)
    clock.set(4_000_000)
    assert (clock.now_us(), clock.monotonic()) == (4_000_000, 3.0)


def test_a_wall_clock_set_back_leaves_monotonic_time_alone() -> None:
    clock = ManualClock(5_000_000)
    clock.advance(1)
    clock.set(2_000_000)
    assert (clock.now_us(), clock.monotonic()) == (2_000_000, 1.0)


def test_time_cannot_be_advanced_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ManualClock(0).advance(-1)
