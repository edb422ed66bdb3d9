"""Rings are lost, late, doubled, out of order, false, or do not come at all."""

from __future__ import annotations

from endwell.doorbell.contract import EVERYTHING
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.faults.registry import fault
from endwell.testing.simulation import Simulation


@fault(weight=3)
def ring_lost(sim: Simulation, dice: Dice) -> None:
    """Some rings never arrive."""
    sim.spoil_rings("ring_lost", dice.choice((1, 3, 10)), lambda usual: [])


@fault(weight=3)
def ring_late(sim: Simulation, dice: Dice) -> None:
    """Some rings arrive much later, after others that were rung after them."""
    sim.spoil_rings("ring_late", dice.choice((1, 3, 10)), lambda usual: [dice.choice((0.5, 5, 90))])


@fault(weight=3)
def ring_doubled(sim: Simulation, dice: Dice) -> None:
    """Some rings arrive twice, or much more often."""
    times = dice.choice((2, 2, 50))
    sim.spoil_rings("ring_doubled", 3, lambda usual: [*usual, *(dice.random() * 5 for _ in range(times))])


@fault(weight=2)
def rings_out_of_order(sim: Simulation, dice: Dice) -> None:
    """Rings overtake each other."""
    sim.spoil_rings("rings_out_of_order", 10, lambda usual: [dice.random() * 2])


@fault(weight=2)
def bells_dead(sim: Simulation, dice: Dice) -> None:
    """For a while no ring passes between processes."""
    seconds = dice.choice((30, 300, 1200))
    sim.spoil_rings("bells_dead", 100_000, lambda usual: [], within=seconds)


@fault(weight=1)
def false_rings(sim: Simulation, dice: Dice) -> None:
    """A thousand rings about nothing."""
    sim.count_fault("false_rings", "machine")
    for _ in range(1000):
        sim.cluster.network.ring_all(frozenset((EVERYTHING,)))
