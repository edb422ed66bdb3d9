"""A letter: something asked of a connection, and how its asker hears of the answer.

The asker waits on its event loop, or blocks its thread; whoever serves the letter may be in any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from endwell.runtime.base import Flag, Runtime
from endwell.runtime.here import is_here

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")


class PendingCommit(Generic[Ask, Answer]):
    """Taken once, then settled once, by an answer or an error."""

    __slots__ = ("_answer", "_error", "_flag", "_future", "ask", "is_settled", "is_taken", "loop", "size")

    def __init__(self, ask: Ask, size: int = 1) -> None:
        self.ask = ask
        self.size = size
        self.loop = None if is_here() else asyncio.get_running_loop()
        self.is_taken = False
        self.is_settled = False
        self._answer: Answer | None = None
        self._error: BaseException | None = None
        self._future: asyncio.Future[None] | None = None
        self._flag: Flag | None = None

    def settle(self, answer: Answer | None, error: BaseException | None = None) -> None:
        """In whichever thread; `deliver` then tells the asker."""
        self._answer, self._error = answer, error
        self.is_settled = True

    async def answered(self) -> Answer:
        """Wait on the asker's event loop."""
        if not self.is_settled and self.loop is not None:
            self._future = self.loop.create_future()
            await self._future
        return self._result()

    def wait(self, runtime: Runtime) -> Answer:
        """Block the asker's thread."""
        if not self.is_settled:
            self._flag = runtime.flag()
            if not self.is_settled:  # asked once more: whoever settles it now sees the flag
                self._flag.wait()
        return self._result()

    def _result(self) -> Answer:
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]

    def wake(self) -> None:
        """Tell the asker, in the asker's own thread if it waits on an event loop."""
        if self._flag is not None:
            self._flag.set()
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


def deliver(letters: Sequence[PendingCommit[Any, Any]]) -> None:
    """Wake everybody whose letter is settled; those of another event loop in one call for all of them."""
    here = asyncio._get_running_loop()
    elsewhere: dict[asyncio.AbstractEventLoop, list[PendingCommit[Any, Any]]] = {}
    for letter in letters:
        if letter.loop is None or letter.loop is here:
            letter.wake()
        else:
            elsewhere.setdefault(letter.loop, []).append(letter)
    for loop, theirs in elsewhere.items():
        with suppress(RuntimeError):  # the loop has closed; nobody waits any more
            loop.call_soon_threadsafe(_wake, theirs)


def _wake(letters: Sequence[PendingCommit[Any, Any]]) -> None:
    for letter in letters:
        letter.wake()
