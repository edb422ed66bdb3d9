"""What a store offers, whichever database is behind it. Changes go through `commit`; the rest asks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from endwell.model.commands import Command
from endwell.store.reads import Reads
from endwell.store.rows import Reply

Ring = Callable[[set[str]], None]
"""Told, after a commit, which topics it concerns."""

BATCH_LIMIT = 256
"""Most commands that share one transaction: more would hold the lock too long for everybody else."""


class Store(Reads):
    """The truth. Every method is a domain verb; no caller sees SQL."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, bring the schema up to date, and be ready."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is waiting and let go of everything."""

    @abstractmethod
    async def commit(self, commands: Sequence[Command]) -> list[Reply]:
        """Hand commands to the one door; they share a transaction with whatever else is waiting."""

    @abstractmethod
    async def now(self) -> int:
        """The only clock for decisions, in microseconds."""

    @abstractmethod
    def sibling(self) -> Store:
        """A store for another event loop (the heartbeat's): the same truth, not held up here."""

    @abstractmethod
    async def settings(self) -> dict[str, Any]:
        """The database's own version and durability settings, read back."""

    async def one(self, command: Command) -> Reply:
        """One command; its refusal is raised."""
        (reply,) = await self.commit((command,))
        if reply.refusal is not None:
            raise reply.refusal
        return reply
