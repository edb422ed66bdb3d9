"""The registry of faults. Each is planned for a moment, waits for its occasion, and counts when it happens.

A kill counts only if its victim held work or was inside a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Final, Literal

from endwell.runtime.virtual.scheduler import Dice

Need = Literal["", "queue", "relay"]
"""The part that an installation must have for a fault to make sense."""
Inject = Callable[[Any, Dice], None]
"""Acts on a `Simulation`, which stands above this module."""


@dataclass(frozen=True)
class InjectedFault:
    """`weight` is how often it is planned, relative to others; `always`, how often every plan has it."""

    name: str
    says: str
    weight: int
    always: int
    needs: Need
    inject: Inject


FAULTS: Final[dict[str, InjectedFault]] = {}


def fault(weight: int = 4, always: int = 0, needs: Need = "") -> Callable[[Inject], Inject]:
    """Register a function under its name; its docstring says what goes wrong.

    It causes the fault, or arms it for its first occasion, and calls `sim.count_fault(name, …)` then.
    """

    def register(inject: Inject) -> Inject:
        name = inject.__name__
        if name in FAULTS or not inject.__doc__:
            raise ValueError(f"{name} is already registered, or does not say what goes wrong")
        FAULTS[name] = InjectedFault(name, inject.__doc__, weight, always, needs, inject)
        return inject

    return register


@dataclass(frozen=True, order=True)
class Planned:
    """One fault of a plan. Its salt gives it its own dice: removing other faults changes it little."""

    at_seconds: float
    name: str
    salt: int


def plan_faults(dice: Dice, count: int, within_seconds: float, has: Container[Need] = ("",)) -> list[Planned]:
    """Plan `count` faults over a time, of the kinds that this installation can meet."""
    names = [name for name, fault in FAULTS.items() if fault.needs in has]
    weights = [FAULTS[name].weight for name in names]
    chosen = [name for name in names for _ in range(FAULTS[name].always)][:count]
    chosen += dice.choices(names, weights, k=count - len(chosen))
    moments = [30 + dice.random() * (within_seconds - 30) for _ in chosen]
    return sorted(Planned(at, name, dice.getrandbits(32)) for at, name in zip(moments, chosen, strict=True))
