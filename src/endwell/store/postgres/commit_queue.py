"""The line in front of the committers: commands that wait while they are at work share the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from endwell.errors import UsageError
from endwell.model.commands import Claim, ClaimNext, Command, DispatchNext
from endwell.runtime.base import Runtime
from endwell.store.rows import Outcome, Reply

Run = Callable[[Sequence[Command]], Awaitable[Outcome]]


class QueuedCommit:
    """Commands on their way, and the future that their replies settle."""

    __slots__ = ("commands", "future", "takes")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.takes = any(isinstance(command, Claim | ClaimNext | DispatchNext) for command in commands)
        self.future: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()


class CommitQueue:
    """Whoever is free takes everything that waits, up to a limit, and runs it together; the urgent first."""

    def __init__(self, runs: Sequence[Run], *, limit: int) -> None:
        self._runs = runs
        self._limit = limit
        self._urgent: deque[QueuedCommit] = deque()
        self._usual: deque[QueuedCommit] = deque()
        self._idle: dict[int, asyncio.Future[None]] = {}
        self._is_closed = False
        self._servers: list[asyncio.Task[None]] = []

    def open(self, runtime: Runtime) -> None:
        """Start to serve, on the running event loop."""
        name = "endwell-postgres-committer"
        self._servers = [runtime.spawn(self._serve(n, run), name) for n, run in enumerate(self._runs)]

    async def close(self) -> None:
        """Serve what waits, then end."""
        self._is_closed = True
        while self._idle:
            self._wake_one()
        await asyncio.wait(self._servers)

    def post(self, commands: Sequence[Command], *, urgent: bool) -> asyncio.Future[list[Reply]]:
        """Hand commands in."""
        letter = QueuedCommit(commands)
        if self._is_closed:
            letter.future.set_exception(UsageError("the store is closed"))
            return letter.future
        (self._urgent if urgent else self._usual).append(letter)
        self._wake_one()
        return letter.future

    def _wake_one(self) -> None:
        """The first of them, so that little work stays on one connection."""
        while self._idle:
            rest = self._idle.pop(min(self._idle))
            if not rest.done():  # its loop may be ending
                rest.set_result(None)
                return

    async def _serve(self, number: int, run: Run) -> None:
        while True:
            while letters := self._taken():
                await _settle(letters, run)
            if self._is_closed:
                return
            self._idle[number] = asyncio.get_running_loop().create_future()
            await self._idle[number]

    def _taken(self) -> list[QueuedCommit]:
        """One taker in each batch: two would be offered the same tasks, and the second get nothing; and
        what a stream brought is taken on both connections, so that turns of one run while the other waits.
        """
        taken: list[QueuedCommit] = []
        size, takes = 0, False
        for line in (self._urgent, self._usual):
            while line and (not taken or size + len(line[0].commands) <= self._limit):
                if takes and line[0].takes:
                    return taken
                taken.append(line.popleft())
                size += len(taken[-1].commands)
                takes = takes or taken[-1].takes
        return taken


async def _settle(letters: Sequence[QueuedCommit], run: Run) -> None:
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
