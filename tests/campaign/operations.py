"""The operations there are: every command that the product can hand to its one door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from endwell.model import commands as c

DERIVED: Final = {
    "Claim": "ClaimNext",
    "Disown": "SettleChildren",
    "Dispatch": "DispatchNext",
}
"""Made by the door out of another one, in that one's commit."""


def _below(kind: type[c.Command]) -> Iterator[type[c.Command]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


OPERATIONS: Final = frozenset(
    kind.__name__ for kind in _below(c.Command) if kind not in (c.TaskCommand, c.AttemptCommand)
) - frozenset(DERIVED)
