"""Threads that own a SQLite connection: one lane writes, one reads. Callers await on their own event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from endwell.errors import UsageError
from endwell.runtime.base import Runtime
from endwell.runtime.processes import process_id

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")


class Letter(Generic[Ask, Answer]):
    """A question on its way to a lane, and the future that its answer settles."""

    __slots__ = ("answer", "ask", "error", "future", "loop", "size", "urgent")

    def __init__(self, ask: Ask, size: int, urgent: bool) -> None:
        self.ask = ask
        self.size = size
        self.urgent = urgent
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Answer] = self.loop.create_future()
        self.answer: Answer | None = None
        self.error: BaseException | None = None


class Lane(Generic[Ask, Answer]):
    """A thread that takes everything that waits, up to a limit, and settles it together."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        serve: Callable[[Sequence[Letter[Ask, Answer]]], None],
        *,
        limit: int,
        closing: Callable[[], None],
    ) -> None:
        self._serve = serve
        self._limit = limit
        self._closing = closing
        self._urgent: deque[Letter[Ask, Answer]] = deque()
        self._usual: deque[Letter[Ask, Answer]] = deque()
        self._flag = runtime.flag()
        self._is_closed = False
        self._pid = process_id()
        self._thread = runtime.thread(self._run, name)

    def post(self, ask: Ask, *, size: int = 1, urgent: bool = False) -> asyncio.Future[Answer]:
        """Hand a question in; heartbeats are urgent and go before everything that waits."""
        self.refuse_if_nobody_serves()
        letter: Letter[Ask, Answer] = Letter(ask, size, urgent)
        (self._urgent if urgent else self._usual).append(letter)
        self._flag.set()
        return letter.future

    def refuse_if_nobody_serves(self) -> None:
        """A closed store, or a forked child, is told at once."""
        if self._is_closed:
            raise UsageError("the store is closed")
        if process_id() != self._pid:  # the thread is the parent's
            raise UsageError(
                "this store was opened before the process forked",
                hint="make a new Endwell object in the child process",
            )

    async def close(self, runtime: Runtime) -> None:
        """Serve what waits, then end the thread."""
        self._is_closed = True
        self._flag.set()
        await runtime.in_thread(self._thread.join)

    def _run(self) -> None:
        try:
            while True:
                self._flag.wait()
                self._flag.clear()
                while letters := self._take():
                    self._serve(letters)
                    _deliver(letters)
                if self._is_closed and not (self._urgent or self._usual):
                    return
        finally:
            self._closing()

    def _take(self) -> list[Letter[Ask, Answer]]:
        taken: list[Letter[Ask, Answer]] = []
        size = 0
        for line in (self._urgent, self._usual):
            while line and (not taken or size + line[0].size <= self._limit):
                letter = line.popleft()
                taken.append(letter)
                size += letter.size
        return taken


def _deliver(letters: Sequence[Letter[Any, Any]]) -> None:
    """Settle the futures of each event loop in one call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Letter[Any, Any]]] = {}
    for letter in letters:
        by_loop.setdefault(letter.loop, []).append(letter)
    for loop, mine in by_loop.items():
        with suppress(RuntimeError):  # the loop has closed; nobody waits any more
            loop.call_soon_threadsafe(_settle, mine)


def _settle(letters: Sequence[Letter[Any, Any]]) -> None:
    for letter in letters:
        if letter.future.done():
            continue
        if letter.error is not None:
            letter.future.set_exception(letter.error)
        else:
            letter.future.set_result(letter.answer)
