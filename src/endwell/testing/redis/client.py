"""A line to the simulated server. Commands and answers take a moment, and either may get lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from endwell.redis_client import ANSWER_SECONDS, RedisClient, Refusal, Unreachable, Word
from endwell.runtime.base import Runtime
from endwell.testing.redis.server import Server
from endwell.testing.redis.waiting import BlockedRead

Commands = Sequence[Sequence[Word]]
Fate = Literal["", "cut", "swallowed", "silent"]
"""`cut`: it never arrives. `swallowed`: it takes place, its answer is lost. `silent`: nothing is heard."""
FOR_EVER_SECONDS: Final = 1e6
GONE: Final = object()
"""In place of an answer: the line broke."""


class Network:
    """All lines to one server. `fate` decides what becomes of each command, `done` is told what took place,
    `is_slow` says whether an answer takes a while.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.is_away = False
        self.fate: Callable[[str, Commands], Fate] = lambda owner, commands: ""
        self.done: Callable[[str, Commands, list[Any]], None] = lambda owner, commands, answers: None
        self.is_slow: Callable[[], bool] = lambda: True

    def cut_all(self) -> None:
        """Every line breaks now; whoever waits for something hears of it."""
        waiting, self.server.waiting = self.server.waiting, []
        for each in waiting:
            each.give(GONE)


class SimulatedRedisClient(RedisClient):
    """One process's client of the simulated server."""

    def __init__(self, network: Network, runtime: Runtime, owner: str, *, blocking: bool = False) -> None:
        self._network = network
        self._runtime = runtime
        self._owner = owner
        self._limit_seconds = FOR_EVER_SECONDS if blocking else ANSWER_SECONDS

    async def ask_all(self, commands: Commands, *, atomic: bool = False) -> list[Any]:
        answers = await self._exchange(commands, is_atomic=atomic)
        for answer in answers:
            if isinstance(answer, Refusal):
                raise answer
        return answers

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _exchange(self, commands: Commands, *, is_atomic: bool) -> list[Any]:
        await self._runtime.sleep(0)
        fate = self._network.fate(self._owner, commands)
        if fate == "silent":
            await self._runtime.sleep(self._limit_seconds)
        if fate in ("silent", "cut") or self._network.is_away:
            raise Unreachable("the line is cut")
        answers = self._executed(commands, is_atomic)
        self._network.done(self._owner, commands, answers)
        if len(answers) == 1 and isinstance(answers[0], BlockedRead):
            answers = [await self._waited(answers[0])]
        if self._network.is_slow() or asyncio.get_running_loop().is_closed():  # the dead hear nothing
            await self._runtime.sleep(0)
        if fate == "swallowed" or answers[0] is GONE:
            raise Unreachable("the line was cut")
        return answers

    def _executed(self, commands: Commands, is_atomic: bool) -> list[Any]:
        server = self._network.server
        if is_atomic:
            try:
                return server.transact(commands)
            except Refusal as refusal:
                return [refusal]
        return [server.answer(words) for words in commands]

    async def _waited(self, waiting: BlockedRead) -> Any:
        server, loop = self._network.server, asyncio.get_running_loop()
        waiting.is_over = loop.is_closed
        server.waiting.append(waiting)
        try:
            await self._runtime.wait(waiting.event, waiting.milliseconds / 1000)
        finally:
            if waiting in server.waiting:
                server.waiting.remove(waiting)
        return waiting.answer
