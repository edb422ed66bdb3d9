"""A letter: something asked of a connection, and how its asker hears of the answer.

The asker waits on its event loop; the letter may be served in any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")


class PendingCommit(Generic[Ask, Answer]):
    """Taken once, then settled once, by an answer or an error."""

    __slots__ = ("_answer", "_error", "_future", "ask", "is_settled", "is_taken", "loop", "size")

    def __init__(self, ask: Ask, size: int = 1) -> None:
        self.ask = ask
        self.size = size
        self.loop = asyncio.get_running_loop()
        self.is_taken = False
        self.is_settled = False
        self._answer: Answer | None = None
        self._error: BaseException | None = None
        self._future: asyncio.Future[None] | None = None

    def settle(self, answer: Answer | None, error: BaseException | None = None) -> None:
        """In whichever thread; `deliver` then tells the asker."""
        self._answer, self._error = answer, error
        self.is_settled = True

    async def answered(self) -> Answer:
        """Wait on the asker's event loop."""
        if not self.is_settled:
            self._future = self.loop.create_future()
            await self._future
        return self._result()

    def _result(self) -> Answer:
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]

    def wake(self) -> None:
        """Wake the asker, in the asker's own thread."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


def deliver(letters: Sequence[PendingCommit[Any, Any]]) -> None:
    """Wake everybody whose letter is settled; those of another event loop in one call for all of them."""
    here = asyncio._get_running_loop()
    elsewhere: dict[asyncio.AbstractEventLoop, list[PendingCommit[Any, Any]]] = {}
    for letter in letters:
        if letter.loop is here:
            letter.wake()
        else:
            elsewhere.setdefault(letter.loop, []).append(letter)
    for loop, theirs in elsewhere.items():
        with suppress(RuntimeError):  # the loop has closed; nobody waits any more
            loop.call_soon_threadsafe(_wake, theirs)


def _wake(letters: Sequence[PendingCommit[Any, Any]]) -> None:
    for letter in letters:
        letter.wake()
