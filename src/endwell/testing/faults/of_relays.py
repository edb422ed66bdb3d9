"""Faults of the receiver and the relay: refusals, lost answers, deaths before the cursor moves."""

from __future__ import annotations

from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.faults.registry import fault
from endwell.testing.receiver import Manner
from endwell.testing.simulation import Simulation


def _spoil_batches(sim: Simulation, name: str, manner: Manner, times: int) -> None:
    noted: list[bool] = []

    def take_badly(owner: str) -> Manner:
        if not noted:
            noted.append(True)
            sim.count_fault(name, "receiver", f"of {owner}")
        return manner

    sim.wait_at("batch", take_badly, times=times)


@fault(weight=3, needs="relay")
def receiver_refuses(sim: Simulation, dice: Dice) -> None:
    """The receiver takes nothing for a while."""
    _spoil_batches(sim, "receiver_refuses", "refused", dice.choice((1, 3, 12)))


@fault(weight=3, needs="relay")
def receiver_takes_a_part(sim: Simulation, dice: Dice) -> None:
    """The receiver takes the first few messages and refuses the rest."""
    _spoil_batches(sim, "receiver_takes_a_part", "half", dice.choice((1, 3)))


@fault(weight=4, needs="relay")
def answer_of_the_receiver_lost(sim: Simulation, dice: Dice) -> None:
    """The receiver takes everything, and its answer is lost."""
    _spoil_batches(sim, "answer_of_the_receiver_lost", "unheard", dice.choice((1, 2, 6)))


@fault(weight=2, needs="relay")
def receiver_silent(sim: Simulation, dice: Dice) -> None:
    """The receiver neither takes nor refuses; the request times out."""
    _spoil_batches(sim, "receiver_silent", "silent", dice.choice((1, 5)))


@fault(weight=3, needs="relay")
def line_to_the_receiver_breaks(sim: Simulation, dice: Dice) -> None:
    """The connection breaks in the middle of a batch."""
    _spoil_batches(sim, "line_to_the_receiver_breaks", "broken", dice.choice((1, 2)))


@fault(weight=4, always=1, needs="relay")
def supervisor_killed_after_telling(sim: Simulation, dice: Dice) -> None:
    """A supervisor dies after a delivery, before its cursor moves."""

    def kill(owner: str) -> bool:
        sim.count_fault("supervisor_killed_after_telling", owner)
        sim.kill(sim.cluster.members[owner], down_seconds=dice.choice((5, 60)))
        return True

    sim.wait_at("delivered", kill)


@fault(weight=3, needs="relay")
def supervisor_frozen_after_telling(sim: Simulation, dice: Dice) -> None:
    """A supervisor freezes between a delivery and its cursor, until another supervisor holds the cursor."""

    def freeze(owner: str) -> bool:
        sim.count_fault("supervisor_frozen_after_telling", owner)
        sim.freeze(sim.cluster.members[owner], dice.choice((20, 100, 300)))
        return True

    sim.wait_at("delivered", freeze)
