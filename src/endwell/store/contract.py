"""What a store offers, whichever database is behind it. Changes go through `commit`; the rest asks."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar, Protocol

from endwell.errors import StoreError, UsageError
from endwell.model.card import Card
from endwell.model.commands import Command
from endwell.model.message import Message
from endwell.runtime.processes import process_id
from endwell.store.log import Logged
from endwell.store.probe import ProbedStore
from endwell.store.reads.health import HealthReads
from endwell.store.reads.inbox import InboxReads
from endwell.store.reads.log import LogReads
from endwell.store.reads.side_rows import SideRowReads
from endwell.store.reads.streams import StreamReads
from endwell.store.reads.tasks import TaskReads
from endwell.store.rows import Reply

log = logging.getLogger(__name__)

Ring = Callable[[set[str]], None]
"""Told, after a commit, which topics it concerns."""


class Snapshot(Protocol):
    """The record as it stands at one moment."""

    async def events_after(self, namespace: str, cursor: str, limit: int) -> list[Logged]:
        """Every committed event after a cursor."""

    async def cards_between(self, namespace: str, first: str, last: str) -> list[Card]:
        """The cards from one id up to another, which is not included."""

    async def messages_page(self, namespace: str, after: str, limit: int) -> list[Message]:
        """Messages that wait to be consumed, by id."""


class Store(TaskReads, InboxReads, LogReads, StreamReads, HealthReads, SideRowReads, ProbedStore):
    """The truth. Every method is a domain verb; no caller sees SQL."""

    parallel_commits: ClassVar[int] = 1
    """How many commits can be under way at once: more than one where another process does the work."""
    _opened_in: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the store has been opened and not closed."""
        return self._opened_in is not None

    def mark_open(self) -> None:
        """Note that this process has opened the store."""
        self._opened_in = process_id()

    def mark_closed(self) -> None:
        """Note that the store takes nothing more."""
        self._opened_in = None

    def require_open(self) -> None:
        """Refuse what a closed store, or a forked child, is asked: nothing would answer."""
        if self._opened_in is None:
            raise UsageError("the store is not open")
        if self._opened_in != process_id():
            raise UsageError(
                "this store was opened before the process forked",
                hint="make a new Endwell object in the child process",
            )

    @abstractmethod
    async def open(self) -> None:
        """Connect, bring the schema up to date, and be ready."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is waiting and let go of everything."""

    async def commit(self, commands: Sequence[Command]) -> list[Reply]:
        """Hand commands to the door; they share a transaction with other commands that wait.

        What follows for other tasks is handed in next, in a commit of its own. If that is lost, the message
        that caused it is still in the inbox, and a watchdog finds it.
        """
        replies = await self._commit(commands)
        follow = [command for reply in replies for command in reply.follow]
        while follow:
            try:
                answers = await self._commit(follow)
            except StoreError as error:
                log.warning("what follows for other tasks must wait: %s", error.message)
                break
            follow = [command for reply in answers for command in reply.follow]
        return replies

    @abstractmethod
    async def _commit(self, commands: Sequence[Command]) -> list[Reply]:
        """The same without what follows."""

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """The record for an export. Where commits come one by one, the store itself will do."""
        return nullcontext(self)

    @abstractmethod
    def for_another_loop(self) -> Store:
        """A store for another event loop (the heartbeat's): the same truth, not held up here."""

    @abstractmethod
    async def settings(self) -> dict[str, Any]:
        """The database's own version and durability settings, read back."""

    async def commit_one(self, command: Command) -> Reply:
        """One command; its refusal is raised."""
        (reply,) = await self.commit((command,))
        if reply.refusal is not None:
            raise reply.refusal
        return reply
