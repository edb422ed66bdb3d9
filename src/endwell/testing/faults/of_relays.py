"""Whoever is told refuses, does not answer, or hears half; the relay dies between telling and noting it."""

from __future__ import annotations

from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.faults.registry import fault
from endwell.testing.receiver import Manner
from endwell.testing.simulation import Simulation


def _taken(sim: Simulation, name: str, manner: Manner, times: int) -> None:
    noted: list[bool] = []

    def act(owner: str) -> Manner:
        if not noted:
            noted.append(True)
            sim.happened(name, "receiver", f"of {owner}")
        return manner

    sim.spoil_receiver(act, times=times)


@fault(weight=3, needs="relay")
def receiver_refuses(sim: Simulation, dice: Dice) -> None:
    """The receiver takes nothing for a while."""
    _taken(sim, "receiver_refuses", "refused", dice.choice((1, 3, 12)))


@fault(weight=3, needs="relay")
def receiver_takes_a_part(sim: Simulation, dice: Dice) -> None:
    """The receiver takes the first few messages and refuses the rest."""
    _taken(sim, "receiver_takes_a_part", "half", dice.choice((1, 3)))


@fault(weight=4, needs="relay")
def answer_of_the_receiver_lost(sim: Simulation, dice: Dice) -> None:
    """The receiver takes everything, and nobody hears that it did."""
    _taken(sim, "answer_of_the_receiver_lost", "unheard", dice.choice((1, 2, 6)))


@fault(weight=2, needs="relay")
def receiver_silent(sim: Simulation, dice: Dice) -> None:
    """The receiver neither takes nor refuses: time runs out."""
    _taken(sim, "receiver_silent", "silent", dice.choice((1, 5)))


@fault(weight=3, needs="relay")
def line_to_the_receiver_breaks(sim: Simulation, dice: Dice) -> None:
    """The line breaks in the middle of a batch."""
    _taken(sim, "line_to_the_receiver_breaks", "broken", dice.choice((1, 2)))


@fault(weight=4, always=1, needs="relay")
def supervisor_killed_after_telling(sim: Simulation, dice: Dice) -> None:
    """A supervisor dies when something was told, and its cursor does not say so yet."""

    def act(owner: str) -> bool:
        member = sim.cluster.members[owner]
        sim.happened("supervisor_killed_after_telling", owner)
        sim.kill(member, down_seconds=dice.choice((5, 60)))
        return True

    sim.after_telling(act)


@fault(weight=3, needs="relay")
def supervisor_frozen_after_telling(sim: Simulation, dice: Dice) -> None:
    """A supervisor stands still between telling and noting it, until another holds the cursor."""

    def act(owner: str) -> bool:
        member = sim.cluster.members[owner]
        sim.happened("supervisor_frozen_after_telling", owner)
        sim.freeze(member, dice.choice((20, 100, 300)))
        return True

    sim.after_telling(act)
