"""Faults of steps, effects and tools: they raise, hang, answer late, twice or not at all."""

from __future__ import annotations

from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.faults.registry import fault
from endwell.testing.simulation import Simulation


@fault(weight=4)
def step_raises(sim: Simulation, dice: Dice) -> None:
    """A step's function raises."""
    sim.spoil_next("step", "step_raises")


@fault(weight=3)
def step_hangs(sim: Simulation, dice: Dice) -> None:
    """A step's function takes longer than it may."""
    sim.spoil_next("step", "step_hangs", dice.choice((30, 200, 1000)))


@fault(weight=4)
def effect_is_slow(sim: Simulation, dice: Dice) -> None:
    """The outside world takes longer to change than an effect may take."""
    sim.spoil_next("effect", "effect_is_slow", dice.choice((20, 40, 200)))


@fault(weight=4)
def effect_raises_afterwards(sim: Simulation, dice: Dice) -> None:
    """The outside world has changed, and the worker receives an error."""
    sim.spoil_next("effect_error", "effect_raises_afterwards")


@fault(weight=3)
def tool_silent(sim: Simulation, dice: Dice) -> None:
    """A tool never answers."""
    sim.spoil_next("tool", "tool_silent")


@fault(weight=3)
def tool_late(sim: Simulation, dice: Dice) -> None:
    """A tool answers after its deadline."""
    sim.spoil_next("tool", "tool_late")


@fault(weight=3)
def tool_answers_twice(sim: Simulation, dice: Dice) -> None:
    """A tool gives two answers, at once and different."""
    sim.spoil_next("tool", "tool_answers_twice")


@fault(weight=3)
def tool_fails(sim: Simulation, dice: Dice) -> None:
    """A tool reports that it failed."""
    sim.spoil_next("tool", "tool_fails")
