"""The line in front of the committers: commands that wait while they are at work share the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from endwell.errors import UsageError
from endwell.model.commands import Command
from endwell.runtime.base import Runtime
from endwell.store.rows import Outcome, Reply

Run = Callable[[Sequence[Command]], Awaitable[Outcome]]


class Letter:
    """Commands on their way, and the future that their replies settle."""

    __slots__ = ("commands", "future")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.future: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()


class Line:
    """Whoever is free takes everything that waits, up to a limit, and runs it together; the urgent first."""

    def __init__(self, runs: Sequence[Run], *, limit: int) -> None:
        self._runs = runs
        self._limit = limit
        self._urgent: deque[Letter] = deque()
        self._usual: deque[Letter] = deque()
        self._something = asyncio.Event()
        self._is_closed = False
        self._servers: list[asyncio.Task[None]] = []

    def open(self, runtime: Runtime) -> None:
        """Start to serve, on the running event loop."""
        name = "endwell-postgres-committer"
        self._servers = [runtime.spawn(self._serve(run), name) for run in self._runs]

    async def close(self) -> None:
        """Serve what waits, then end."""
        self._is_closed = True
        self._something.set()
        await asyncio.wait(self._servers)

    def post(self, commands: Sequence[Command], *, urgent: bool) -> asyncio.Future[list[Reply]]:
        """Hand commands in."""
        letter = Letter(commands)
        if self._is_closed:
            letter.future.set_exception(UsageError("the store is closed"))
            return letter.future
        (self._urgent if urgent else self._usual).append(letter)
        self._something.set()
        return letter.future

    async def _serve(self, run: Run) -> None:
        while True:
            while letters := self._taken():
                await _settle(letters, run)
            if self._is_closed:
                return
            self._something.clear()
            await self._something.wait()

    def _taken(self) -> list[Letter]:
        taken: list[Letter] = []
        size = 0
        for line in (self._urgent, self._usual):
            while line and (not taken or size + len(line[0].commands) <= self._limit):
                taken.append(line.popleft())
                size += len(taken[-1].commands)
        return taken


async def _settle(letters: Sequence[Letter], run: Run) -> None:
    try:
        outcome = await run([command for letter in letters for command in letter.commands])
    except Exception as error:
        for letter in letters:
            if not letter.future.done():
                letter.future.set_exception(error)
        return
    start = 0
    for letter in letters:
        end = start + len(letter.commands)
        if not letter.future.done():
            letter.future.set_result(outcome.replies[start:end])
        start = end
