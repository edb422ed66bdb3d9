"""The registry of invariants. A new capability registers its own with `@invariant`.

Each is a small function that reads an `OracleView` and yields a sentence for each thing that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from endwell.testing.oracle.view import OracleView

When = Literal["commit", "move", "checkpoint", "rest", "left"]
Judge = Callable[[OracleView], Iterator[str]]


@dataclass(frozen=True)
class Invariant:
    """`when` says when it is judged.

    `commit`: after every transaction. `move`: after a cursor was moved. `checkpoint`: every few minutes
    and at rest. `rest`: when every task has ended. `left`: when all processes have left and
    the database is closed.
    """

    name: str
    says: str
    when: When
    judge: Judge


INVARIANTS: Final[dict[str, Invariant]] = {}


def invariant(when: When) -> Callable[[Judge], Judge]:
    """Register a function under its name; its docstring says what must hold."""

    def register(judge: Judge) -> Judge:
        name = judge.__name__
        if name in INVARIANTS or not judge.__doc__:
            raise ValueError(f"{name} is already registered, or does not say what must hold")
        INVARIANTS[name] = Invariant(name, judge.__doc__, when, judge)
        return judge

    return register


def invariants_for(when: When) -> tuple[Invariant, ...]:
    """Return the invariants that are judged then."""
    return tuple(one for one in INVARIANTS.values() if one.when == when)
