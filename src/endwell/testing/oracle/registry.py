"""The list of everything that must hold. Whoever adds a capability adds its invariants with `@invariant`.

Each is a small function that looks at a `OracleView` and yields a sentence for everything that is wrong.
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
    """`commit`: after every transaction; `move`: when a cursor was moved; `checkpoint`: now and then, and
    at rest; `rest`: at the end; `left`: when all processes have gone and the database is closed.
    """

    name: str
    says: str
    when: When
    judge: Judge


INVARIANTS: Final[dict[str, Invariant]] = {}


def invariant(when: When) -> Callable[[Judge], Judge]:
    """Register a function under its name; its docstring is what must hold."""

    def register(judge: Judge) -> Judge:
        name = judge.__name__
        if name in INVARIANTS or not judge.__doc__:
            raise ValueError(f"{name} is already registered, or does not say what must hold")
        INVARIANTS[name] = Invariant(name, judge.__doc__, when, judge)
        return judge

    return register


def of(when: When) -> tuple[Invariant, ...]:
    """The invariants of one sort."""
    return tuple(one for one in INVARIANTS.values() if one.when == when)
