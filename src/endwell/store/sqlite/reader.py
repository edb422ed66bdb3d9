"""A thread that owns a SQLite connection and answers questions; callers wait where they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from endwell.errors import UsageError
from endwell.runtime.base import Runtime
from endwell.runtime.processes import process_id
from endwell.store.sqlite.pending import PendingCommit, deliver

Question = Callable[[], Any]


class Owner:
    """Knows whether letters will still be served: not after closing, and not in a forked child."""

    def __init__(self) -> None:
        self.is_closed = False
        self._pid = process_id()

    def refuse_if_nobody_serves(self) -> None:
        """A closed store, or a forked child, is told at once."""
        if self.is_closed:
            raise UsageError("the store is closed")
        if process_id() != self._pid:  # the thread is the parent's
            raise UsageError(
                "this store was opened before the process forked",
                hint="make a new Endwell object in the child process",
            )


class Reader(Owner):
    """A thread that answers one question after the other."""

    def __init__(self, runtime: Runtime, name: str, *, closing: Callable[[], None]) -> None:
        super().__init__()
        self._closing = closing
        self._letters: deque[PendingCommit[Question, Any]] = deque()
        self._attendant = runtime.start_attendant(self._attend, name)

    async def ask(self, question: Question) -> Any:
        """Hand a question in and wait for the answer."""
        self.refuse_if_nobody_serves()
        letter: PendingCommit[Question, Any] = PendingCommit(question)
        self._letters.append(letter)
        self._attendant.call()
        return await letter.answered()

    async def close(self) -> None:
        """Answer what waits, then end the thread."""
        self.is_closed = True
        self._attendant.call()
        await self._attendant.wait_ended()

    def _attend(self) -> bool:
        is_last = self.is_closed  # asked first: whatever came before the closing is still answered
        while self._letters:
            self._answer(self._letters.popleft())
        if is_last:
            self._closing()
        return not is_last

    @staticmethod
    def _answer(letter: PendingCommit[Question, Any]) -> None:
        try:
            letter.settle(letter.ask())
        except Exception as error:
            letter.settle(None, error)
        deliver([letter])
