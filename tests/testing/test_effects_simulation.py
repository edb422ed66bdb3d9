"""Simulated histories of effects that are abandoned, or outlive their coroutines, while workers restart."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from endwell.testing.faults.registry import Planned
from endwell.testing.installation import Installation, installation_for
from endwell.testing.shrinking import simulate
from endwell.testing.simulation import FAULT_COUNT

LEFT_RUNNING = ("hasty", "outliving")
ASKED_AGAIN = ("declined", "confused")
RESTARTS = tuple(Planned(300.0 * n + 1, "worker_told_to_leave", n) for n in range(1, 18))
"""A rolling restart every five minutes."""


def busy_with_effects(seed: int, kinds: tuple[str, ...]) -> Installation:
    """Replace the orders of a seed by tasks of these kinds."""
    chosen = installation_for(seed)
    orders = tuple(
        replace(order, agent="job", payload={**order.payload, "kind": kinds[number % len(kinds)]})
        for number, order in enumerate(chosen.orders)
    )
    return msgspec.structs.replace(chosen, orders=orders)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("faults", [RESTARTS, FAULT_COUNT], ids=["restarts", "all faults"])
def test_abandoned_and_outliving_effects_happen_once(seed: int, faults: int | tuple[Planned, ...]) -> None:
    result = simulate(seed, faults, installation=busy_with_effects(seed, LEFT_RUNNING))

    assert result.violations == ()
    assert result.ended["succeeded"] > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_effects_that_are_asked_for_again_are_made_once_and_never_skipped(seed: int) -> None:
    result = simulate(seed, FAULT_COUNT, installation=busy_with_effects(seed, ASKED_AGAIN))

    assert result.violations == ()
    assert result.ended["succeeded"] > 0
