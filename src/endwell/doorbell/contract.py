"""What every doorbell promises, whichever way it carries its rings.

A topic is a short string without line breaks, such as `work:default:coder` or `ended:default`; a ring
may also arrive as `EVERYTHING`, when naming the topics would have cost more than looking everywhere.
`work:default:coder/ops` says by which channel a ring travels; who hears it hears `work:default:coder`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

EVERYTHING = "*"
"""The topic that stands for all topics."""

Heard = Callable[[frozenset[str]], None]
Unsubscribe = Callable[[], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class BellHealth:
    """`connected` says whether rings pass between processes; without that, polling finds the work."""

    kind: str
    connected: bool
    last_error: str | None = None


class Doorbell(Protocol):
    """Rings other processes at the same store, and this one's own subscribers."""

    async def open(self) -> None:
        """Start to listen; callbacks will run on the event loop that opens the bell."""

    async def close(self) -> None:
        """Stop to listen; later rings go nowhere. The bell may be opened again."""

    def ring(self, topics: Collection[str]) -> None:
        """Say that something changed, after the commit. From any thread; never blocks, never raises."""

    def subscribe(self, callback: Heard) -> Unsubscribe:
        """Have `callback` told, on the bell's loop, which topics were rung; many rings may be one call."""

    def health(self) -> BellHealth:
        """How well the bell works."""


def is_rung(topic: str, rung: frozenset[str]) -> bool:
    """Whether whoever cares for `topic` should look."""
    return topic in rung or EVERYTHING in rung


def as_heard(topic: str) -> str:
    """The topic without the channel by which it travelled."""
    return topic.partition("/")[0]
