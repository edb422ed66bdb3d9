"""A simulated Redis server and its network: commands and answers take a moment, and either may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from endwell.redis_client import ANSWER_SECONDS, RedisClient, Refusal, Unreachable, Word
from endwell.runtime.base import Runtime
from endwell.testing.redis.group_commands import GROUP_COMMANDS
from endwell.testing.redis.key_commands import KEY_COMMANDS
from endwell.testing.redis.keyspace import KeySpace
from endwell.testing.redis.stream import BlockedRead
from endwell.testing.redis.stream_commands import STREAM_COMMANDS

RedisCommands = Sequence[Sequence[Word]]
CommandFate = Literal["", "cut", "swallowed", "silent"]
"""`cut`: it never arrives. `swallowed`: it is executed, its answer is lost. `silent`: no answer, no error."""
FOR_EVER_SECONDS: Final = 1e6
LOST: Final = object()
"""In place of an answer: the connection broke."""


class SimulatedRedis(KeySpace):
    """The server."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock, {**KEY_COMMANDS, **STREAM_COMMANDS, **GROUP_COMMANDS})


class RedisNetwork:
    """The connections to one server.

    `fate` decides what becomes of a client's commands, `on_executed` is called after they were executed, and
    `is_slow` says whether an answer takes a while.
    """

    def __init__(self, server: SimulatedRedis) -> None:
        self.server = server
        self.is_away = False
        self.fate: Callable[[str, RedisCommands], CommandFate] = lambda owner, commands: ""
        self.on_executed: Callable[[str, RedisCommands, list[Any]], None] = lambda *_: None
        self.is_slow: Callable[[], bool] = lambda: True

    def cut_all(self) -> None:
        """Break every connection; reads that wait are told."""
        waiting, self.server.waiting = self.server.waiting, []
        for each in waiting:
            each.give_answer(LOST)


class SimulatedRedisClient(RedisClient):
    """One process's client of the simulated server."""

    def __init__(
        self, network: RedisNetwork, runtime: Runtime, owner: str, *, blocking: bool = False
    ) -> None:
        self._network = network
        self._runtime = runtime
        self._owner = owner
        self._limit_seconds = FOR_EVER_SECONDS if blocking else ANSWER_SECONDS

    async def ask_all(self, commands: RedisCommands, *, atomic: bool = False) -> list[Any]:
        answers = await self._send_simulated(commands, is_atomic=atomic)
        for answer in answers:
            if isinstance(answer, Refusal):
                raise answer
        return answers

    async def close(self) -> None:
        """There is nothing to close."""

    async def _send_simulated(self, commands: RedisCommands, *, is_atomic: bool) -> list[Any]:
        await self._runtime.sleep(0)
        fate = self._network.fate(self._owner, commands)
        if fate == "silent":
            await self._runtime.sleep(self._limit_seconds)
        if fate in ("silent", "cut") or self._network.is_away:
            raise Unreachable("the connection is cut")
        answers = self._execute(commands, is_atomic)
        self._network.on_executed(self._owner, commands, answers)
        if len(answers) == 1 and isinstance(answers[0], BlockedRead):
            answers = [await self._wait_for(answers[0])]
        if self._network.is_slow() or asyncio.get_running_loop().is_closed():  # the process has ended
            await self._runtime.sleep(0)
        if fate == "swallowed" or answers[0] is LOST:
            raise Unreachable("the connection was cut")
        return answers

    def _execute(self, commands: RedisCommands, is_atomic: bool) -> list[Any]:
        server = self._network.server
        if not is_atomic:
            return [server.answer(words) for words in commands]
        try:
            return server.execute_all(commands)
        except Refusal as refusal:
            return [refusal]

    async def _wait_for(self, read: BlockedRead) -> Any:
        server, loop = self._network.server, asyncio.get_running_loop()
        read.is_over = loop.is_closed
        server.waiting.append(read)
        try:
            await self._runtime.wait(read.event, read.milliseconds / 1000)
        finally:
            if read in server.waiting:
                server.waiting.remove(read)
        return read.answer
