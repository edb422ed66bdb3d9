"""A child's line to its worker, and what it learns there about its hold on the task."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from endwell.errors import EndwellError
from endwell.external.remote_store import ErrorSaid, error_of
from endwell.runtime.clock import Clock

LINE_BYTES: Final = 16 * 1024 * 1024
"""Most that a child may say in one line: how its turn ended, with everything that it waits for."""
REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Most that one request may say: a record of the largest size, written in base64, and room to spare."""
IN_FLIGHT: Final = 16
"""Requests that a child has open at a time; the worker reads no further ones until it has answered."""


class PipeAnswer(msgspec.Struct, frozen=True):
    """What the worker answers to one request. For `lease_left` seconds its lease still held just then."""

    answer: int
    lease_left: float
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorSaid | None = None


_answer_decoder = msgspec.json.Decoder(PipeAnswer)


class ChildPipe:
    """The pipes to the worker: requests go out, answers come back in any order."""

    def __init__(self, reading: int, writing: int, clock: Clock) -> None:
        self._reading = os.fdopen(reading, "rb", buffering=0)
        self._writing = os.fdopen(writing, "wb", buffering=0)
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._clock = clock
        self._lines: asyncio.StreamReader
        self._output: asyncio.StreamWriter
        self._asked: dict[int, tuple[float, asyncio.Future[msgspec.Raw]]] = {}
        self._count = 0
        self._broken: BaseException | None = None
        self.on_lease: Callable[[float, float], None] = lambda sent, left: None
        """Hears with every answer when its request was sent, and what was left of the lease since."""

    async def open(self) -> None:
        """Be ready to read and write: neither waits for the other, so neither side can block both."""
        loop = asyncio.get_running_loop()
        self._lines = asyncio.StreamReader(limit=sys.maxsize // 4)
        protocol = asyncio.StreamReaderProtocol(self._lines)
        await loop.connect_read_pipe(lambda: protocol, self._reading)
        flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport, _ = await loop.connect_write_pipe(lambda: flow, self._writing)
        transport.set_write_buffer_limits(0)
        self._output = asyncio.StreamWriter(transport, flow, None, loop)

    def say_first(self, message: Mapping[str, Any]) -> None:
        """Say something before the event loop runs."""
        self._writing.write(msgspec.json.encode(message) + b"\n")

    def say(self, message: Mapping[str, Any]) -> None:
        """Say something that is not answered."""
        self._output.write(msgspec.json.encode(message) + b"\n")

    async def say_last(self, line: bytes) -> None:
        """Say how the turn ended; returns when the worker has all of it, or has hung up."""
        self._output.write(line + b"\n")
        with contextlib.suppress(ConnectionError):
            await self._output.drain()

    async def read(self) -> bytes:
        """The next line; empty when the worker has hung up."""
        return await self._lines.readline()

    async def ask(self, verb: str, given: Mapping[str, Any] | None = None) -> msgspec.Raw:
        """Have the worker do something for this turn; an error that it answers is raised."""
        async with self._slots:
            return await self._asked_now(verb, given)

    async def _asked_now(self, verb: str, given: Mapping[str, Any] | None) -> msgspec.Raw:
        if self._broken is not None:
            raise self._broken
        self._count += 1
        number = self._count
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._asked[number] = self._clock.monotonic(), answer
        try:
            self.say({"ask": verb, "id": number, "with": given or {}})
            return await answer
        finally:
            del self._asked[number]

    async def listen(self) -> None:
        """Hand out the answers until the worker hangs up; without one nobody waits for ever."""
        try:
            while line := await self.read():
                self._hand_out(_answer_decoder.decode(line))
            self._broken = EndwellError("the worker has hung up")
        except BaseException as error:
            self._broken = error
        for _, waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(self._broken)

    def _hand_out(self, said: PipeAnswer) -> None:
        sent, waiting = self._asked.get(said.answer, (None, None))
        if sent is None or waiting is None:
            return
        self.on_lease(sent, said.lease_left)
        if waiting.done():
            return
        if said.error is not None:
            waiting.set_exception(error_of(said.error))
        else:
            waiting.set_result(said.value)


class Leased:
    """The hold of a turn whose lease is kept by another process.

    An answer says how long the lease still held when the worker wrote it. That is counted from the moment
    the request was sent, so a slow answer can only shorten it. Without an answer nothing is covered.
    """

    is_lost: Final = False  # the worker kills whoever has lost its turn

    def __init__(self, link: ChildPipe, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._sent = self._good_until = float("-inf")
        link.on_lease = self._hear

    def covers(self, seconds: float) -> bool:
        """Whether the lease surely holds for so long."""
        return self._good_until - self._clock.monotonic() >= seconds

    async def look(self) -> None:
        """The worker renews the lease without a word to us: ask."""
        await self._link.ask("lease")

    def _hear(self, sent: float, left: float) -> None:
        if sent >= self._sent:
            self._sent, self._good_until = sent, sent + left
