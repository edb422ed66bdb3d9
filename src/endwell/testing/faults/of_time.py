"""Faults of time: the wall clock is set, or the machine sleeps."""

from __future__ import annotations

from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.faults.registry import fault
from endwell.testing.simulation import Simulation


@fault(weight=2)
def clock_jumps_forward(sim: Simulation, dice: Dice) -> None:
    """The wall clock is set forward, by seconds or by a quarter of an hour."""
    seconds = dice.choice((1, 20, 100, 900))
    sim.count_fault("clock_jumps_forward", "machine", f"{seconds} s")
    sim.shift_clock(seconds)


@fault(weight=2)
def clock_jumps_back(sim: Simulation, dice: Dice) -> None:
    """The wall clock is set back."""
    seconds = dice.choice((1, 20, 100, 600))
    sim.count_fault("clock_jumps_back", "machine", f"{seconds} s")
    sim.shift_clock(-seconds)


@fault(weight=1)
def machine_sleeps(sim: Simulation, dice: Dice) -> None:
    """The machine is suspended: only its wall clock advances."""
    seconds = dice.choice((60, 600, 1800))
    sim.count_fault("machine_sleeps", "machine", f"{seconds} s")
    sim.shift_clock(seconds)
