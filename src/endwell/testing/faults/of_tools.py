"""What agents rely on misbehaves: steps raise or hang, tools are late, silent, wrong, or answer twice."""

from __future__ import annotations

from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.faults.registry import fault
from endwell.testing.simulation import Simulation


@fault(weight=4)
def step_raises(sim: Simulation, dice: Dice) -> None:
    """A step's function raises."""
    sim.step_fates.append(("step_raises", 0.0))


@fault(weight=3)
def step_hangs(sim: Simulation, dice: Dice) -> None:
    """A step's function takes longer than it may."""
    sim.step_fates.append(("step_hangs", dice.choice((30, 200, 1000))))


@fault(weight=4)
def effect_is_slow(sim: Simulation, dice: Dice) -> None:
    """The world outside takes longer to change than an effect may take."""
    sim.effect_fates.append(("effect_is_slow", dice.choice((20, 40, 200))))


@fault(weight=4)
def effect_raises_afterwards(sim: Simulation, dice: Dice) -> None:
    """The world outside has changed, and all the worker hears is an error."""
    sim.effect_fates.append(("effect_raises_afterwards", -1.0))


@fault(weight=3)
def tool_silent(sim: Simulation, dice: Dice) -> None:
    """A tool never answers."""
    sim.tool_fates.append("tool_silent")


@fault(weight=3)
def tool_late(sim: Simulation, dice: Dice) -> None:
    """A tool answers when its time is over."""
    sim.tool_fates.append("tool_late")


@fault(weight=3)
def tool_answers_twice(sim: Simulation, dice: Dice) -> None:
    """A tool gives two answers, at once and different."""
    sim.tool_fates.append("tool_answers_twice")


@fault(weight=3)
def tool_fails(sim: Simulation, dice: Dice) -> None:
    """A tool says that it failed."""
    sim.tool_fates.append("tool_fails")
