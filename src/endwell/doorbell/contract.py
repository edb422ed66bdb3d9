"""What every doorbell promises, whichever way it carries its rings.

A topic is a short string without line breaks, such as `work:default:coder` or `ended:default`. A ring may
also arrive as `EVERYTHING`, when naming the topics would have cost more than looking everywhere. The topic
`work:default:coder/ops` names the channel on which a ring travels; subscribers get `work:default:coder`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

EVERYTHING = "*"
"""The topic that stands for all topics."""

OnRing = Callable[[frozenset[str]], None]
Unsubscribe = Callable[[], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class BellHealth:
    """`connected`: whether rings pass between processes; without that, polling finds the work."""

    kind: str
    connected: bool
    last_error: str | None = None


class Doorbell(Protocol):
    """Rings other processes at the same store, and this one's own subscribers."""

    async def open(self) -> None:
        """Start to listen; callbacks will run on the event loop that opens the bell."""

    async def close(self) -> None:
        """Stop listening; later rings are dropped. The bell may be opened again."""

    def ring(self, topics: Collection[str]) -> None:
        """Announce a change, after its commit. From any thread; never blocks, never raises."""

    def subscribe(self, callback: OnRing) -> Unsubscribe:
        """Call `callback` on the bell's loop with the topics rung; one call may carry many rings."""

    def health(self) -> BellHealth:
        """Report whether the bell works."""


def is_rung(topic: str, rung: frozenset[str]) -> bool:
    """Whether a subscriber that waits for `topic` should look."""
    return topic in rung or EVERYTHING in rung


def without_channel(topic: str) -> str:
    """The topic without the channel on which it travelled."""
    return topic.partition("/")[0]
