"""The operations: every command that the product can hand to the door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from endwell.model import commands as c

DERIVED: Final = {
    "Claim": "ClaimNext",
    "Disown": "SettleChildren",
    "Dispatch": "DispatchNext",
    "Resubmit": "Replay",
}
"""Commands that the door derives from another command, in the same commit."""
ONLY_STREAMED: Final = frozenset({"ForeignReport"})
"""Commands that exist only where turns travel over streams."""


def _below(kind: type[c.Command]) -> Iterator[type[c.Command]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


OPERATIONS: Final = (
    frozenset(kind.__name__ for kind in _below(c.Command) if kind not in (c.TaskCommand, c.AttemptCommand))
    - frozenset(DERIVED)
    - ONLY_STREAMED
)

STREAMED: Final = frozenset(
    f"{who}/{operation}"
    for who, operations in {
        "pmo": (
            *("DispatchNext", "XADD:stream:task", "XACK:stream:task", "Reclaim"),  # publishing turns
            *("Claim", *ONLY_STREAMED, "XACK:stream:result"),  # reading reports of foreign workers
            "EVAL:stream:result",  # publishing results
            *("EVAL:stream:dlq", "HSET:dlq:index", "HDEL:dlq:index"),  # dead letters
        ),
        "worker": (
            *("Claim", "Finish", "FailTurn", "HandBack", "Suspend"),
            *("XACK:stream:task", "XADD:stream:result", "XCLAIM:stream:task"),
        ),
        "foreign": ("XADD:stream:result", "XACK:stream:task"),
    }.items()
    for operation in operations
)
"""Commits and Redis commands that matter where turns travel over streams."""
