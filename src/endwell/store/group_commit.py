"""Group commit: commands that wait at the same moment share one transaction.

Each store puts the commits of its callers into a queue. When a connection is free, the store takes a batch,
runs it and settles it. A caller waits on its own event loop; a batch may be settled in any thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from endwell.model.commands import Claim, ClaimNext, Command, DispatchNext, Heartbeat
from endwell.store.rows import Outcome, Reply

BATCH_LIMIT = 256
"""Most commands that share one transaction: more would hold its locks too long for other processes."""


class PendingCommit:
    """Commands that were handed in together, and the future that receives their replies."""

    __slots__ = ("commands", "future", "is_taken", "loop")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Reply]] = self.loop.create_future()
        self.is_taken = False

    @property
    def is_heartbeat(self) -> bool:
        return len(self.commands) == 1 and isinstance(self.commands[0], Heartbeat)

    @property
    def takes_tasks(self) -> bool:
        return any(isinstance(command, Claim | ClaimNext | DispatchNext) for command in self.commands)

    def settle(self, answer: list[Reply] | Exception) -> None:
        """Give the caller its replies, or the error that failed the whole batch."""
        if self.future.done():
            return
        if isinstance(answer, Exception):
            self.future.set_exception(answer)
        else:
            self.future.set_result(answer)


Batch = list[PendingCommit]
"""Commits that share one transaction."""


class CommitQueue:
    """Commits that wait for a transaction. Any thread may put; one thread at a time may take."""

    def __init__(self) -> None:
        self._heartbeats: deque[PendingCommit] = deque()
        self._others: deque[PendingCommit] = deque()

    def __bool__(self) -> bool:
        return bool(self._heartbeats or self._others)

    def put(self, commands: Sequence[Command]) -> Batch:
        """Queue commands of a caller on the running event loop, in parts that fit into a batch each."""
        parts = [
            PendingCommit(commands[start : start + BATCH_LIMIT])
            for start in range(0, len(commands), BATCH_LIMIT)
        ]
        for part in parts:
            self._line_of(part).append(part)
        return parts

    def take(self) -> Batch:
        """Take what waits, heartbeats first, up to the limit.

        At most one commit of a batch takes tasks: two would be offered the same ones, and the second
        would get none.
        """
        batch: Batch = []
        size, has_taker = 0, False
        for line in (self._heartbeats, self._others):
            while line and (not batch or size + len(line[0].commands) <= BATCH_LIMIT):
                if has_taker and line[0].takes_tasks:
                    return batch
                pending = line.popleft()
                pending.is_taken = True
                batch.append(pending)
                size += len(pending.commands)
                has_taker = has_taker or pending.takes_tasks
        return batch

    def put_back(self, batch: Batch) -> None:
        """Return a batch that was not run to the head of the queue."""
        for pending in reversed(batch):
            pending.is_taken = False
            self._line_of(pending).appendleft(pending)

    def _line_of(self, pending: PendingCommit) -> deque[PendingCommit]:
        return self._heartbeats if pending.is_heartbeat else self._others


def commands_of(batch: Batch) -> list[Command]:
    """All commands of a batch, in order."""
    return [command for pending in batch for command in pending.commands]


def settle(batch: Batch, outcome: Outcome) -> None:
    """Give each caller of a batch its share of the replies."""
    answers: list[list[Reply]] = []
    start = 0
    for pending in batch:
        end = start + len(pending.commands)
        answers.append(outcome.replies[start:end])
        start = end
    _settle_each(list(zip(batch, answers, strict=True)))


def fail(batch: Batch, error: Exception) -> None:
    """Raise an error to each caller of a batch."""
    _settle_each([(pending, error) for pending in batch])


def _settle_each(answers: Sequence[tuple[PendingCommit, list[Reply] | Exception]]) -> None:
    """Settle each commit on its own event loop; all those of another loop in one call."""
    here = asyncio._get_running_loop()
    elsewhere: dict[asyncio.AbstractEventLoop, list[tuple[PendingCommit, list[Reply] | Exception]]] = {}
    for pending, answer in answers:
        if pending.loop is here:
            pending.settle(answer)
        else:
            elsewhere.setdefault(pending.loop, []).append((pending, answer))
    for loop, theirs in elsewhere.items():
        with suppress(RuntimeError):  # that loop has closed, its callers are gone
            loop.call_soon_threadsafe(_settle_all, theirs)


def _settle_all(answers: Sequence[tuple[PendingCommit, list[Reply] | Exception]]) -> None:
    for pending, answer in answers:
        pending.settle(answer)


async def replies_of(parts: Batch) -> list[Reply]:
    """Wait for the replies to one caller's commit; the first error is raised when all parts are settled."""
    replies: list[Reply] = []
    errors: list[Exception] = []
    for part in parts:
        try:
            replies += await part.future
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return replies
