"""Simulated outages of the store, one after another: only processes that died count as crashes."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.testing.faults.registry import Planned
from endwell.testing.shrinking import describe_failure, simulate

AWAY = ("store_away_past_the_lease", "disk_full")


@pytest.mark.parametrize(
    ("seed", "parts"),
    [(1, {"queue": "native", "relay": False}), (22, {"queue": "redis", "relay": False})],
)
def test_outages_count_no_crash_while_processes_live(seed: int, parts: dict[str, Any]) -> None:
    plan = [Planned(60.0 + 200 * n, AWAY[n % 2], 100 * seed + n) for n in range(6)]
    result = simulate(seed, plan, hours=0.5, orders=20, **parts)
    assert result.is_good, describe_failure(result)
    assert result.faults[AWAY[0]] >= 2
