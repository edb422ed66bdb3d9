"""What a worker asks of a queue that brings turns to it. The store grants; a queue only carries.

A delivery may come twice, late, or not at all. Nobody starts anything on its account before the store has
granted the claim, and losing all deliveries costs time, never work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A dispatched turn that was brought here: which one, and what was asked."""

    message_id: str
    task_id: str
    turn_id: str
    epoch: int
    agent: str
    payload: bytes


class Intake(Protocol):
    """A worker's end of a queue."""

    async def start(self, *, room: Callable[[], int], wake: Callable[[], None]) -> None:
        """Begin to read as much as there is room for; `wake` is called when something has come."""

    async def stop(self) -> None:
        """Take nothing more; what was read and not begun goes back to the others."""

    async def close(self) -> None:
        """Send what is still to be acknowledged and let go of the connections."""

    @property
    def is_up(self) -> bool:
        """Whether turns come this way; while they do not, a worker asks the store itself."""

    def expect(self, is_work: bool) -> None:
        """Whether there is work in the store that should come soon."""

    def forget(self) -> None:
        """The lease is gone, and with it all that was held: nothing is acknowledged, others see to it."""

    def nudge(self) -> None:
        """There may be room again."""

    def arrived(self, limit: int) -> list[Delivery]:
        """Take what has come, oldest first."""

    @property
    def waiting(self) -> int:
        """How much has come and was not taken yet."""

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """These could not be asked for just now; they come first the next time."""

    def began(self, attempt_id: str, delivery: Delivery) -> None:
        """The store granted it: it is to be kept fresh until it is `done`."""

    def done(self, attempts: Collection[str]) -> None:
        """The store has the endings of these attempts, or they are no longer ours: acknowledge."""

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """The store says that there is nothing to do: acknowledge."""
