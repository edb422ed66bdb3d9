"""A child process's pipe to its worker, and the store and the lease as the child sees them through it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.json import Decoder

from endwell.errors import EndwellError
from endwell.external.child_protocol import (
    IN_FLIGHT,
    PAGE_CARDS,
    PipeAnswer,
    ReplyMessage,
    error_from,
    reply_from,
)
from endwell.model import commands as c
from endwell.model.card import Card
from endwell.model.effect import Effect
from endwell.model.session import Session
from endwell.runtime.clock import Clock
from endwell.store.rows import Reply

T = TypeVar("T")

_answer_decoder = Decoder(PipeAnswer)


class ChildPipe:
    """Requests go out; answers come back in any order."""

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
        """Called with every answer: when its request was sent, and the seconds left of the lease then."""

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

    def send_first(self, message: Mapping[str, Any]) -> None:
        """Write a message before the event loop runs."""
        self._writing.write(msgspec.json.encode(message) + b"\n")

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a message that is not answered."""
        self._output.write(msgspec.json.encode(message) + b"\n")

    async def send_last(self, line: bytes) -> None:
        """Write how the turn ended; returns when the worker has all of it, or has hung up."""
        self._output.write(line + b"\n")
        with contextlib.suppress(ConnectionError):
            await self._output.drain()

    async def read(self) -> bytes:
        """The next line; empty when the worker has hung up."""
        return await self._lines.readline()

    async def ask(self, verb: str, given: Mapping[str, Any] | None = None) -> msgspec.Raw:
        """Send a request and wait for the answer; an error that it carries is raised."""
        async with self._slots:
            if self._broken is not None:
                raise self._broken
            self._count += 1
            number = self._count
            answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
            self._asked[number] = self._clock.monotonic(), answer
            try:
                self.send({"ask": verb, "id": number, "with": given or {}})
                return await answer
            finally:
                del self._asked[number]

    async def listen(self) -> None:
        """Hand out the answers until the worker hangs up; then every open request fails."""
        try:
            while line := await self.read():
                self._hand_out(_answer_decoder.decode(line))
            self._broken = EndwellError("the worker has hung up")
        except BaseException as error:
            self._broken = error
        for _, waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(self._broken)

    def _hand_out(self, answer: PipeAnswer) -> None:
        sent, waiting = self._asked.get(answer.answer, (None, None))
        if sent is None or waiting is None:
            return
        self.on_lease(sent, answer.lease_left)
        if waiting.done():
            return
        if answer.error is not None:
            waiting.set_exception(error_from(answer.error))
        else:
            waiting.set_result(answer.value)


class RemoteHold:
    """The hold of a turn whose lease is kept by its worker.

    An answer says how long the lease still held when the worker wrote it. That is counted from the moment
    the request was sent, so a slow answer can only shorten it. Without an answer nothing is covered.
    """

    is_lost: Final = False  # the worker kills a child that has lost its turn

    def __init__(self, pipe: ChildPipe, clock: Clock) -> None:
        self._pipe = pipe
        self._clock = clock
        self._sent = self._good_until = float("-inf")
        pipe.on_lease = self._on_lease

    def lasts_for(self, seconds: float) -> bool:
        return self._good_until - self._clock.monotonic() >= seconds

    async def refresh(self) -> None:
        """Ask: the worker renews the lease without telling its child."""
        await self._pipe.ask("lease")

    def _on_lease(self, sent: float, left: float) -> None:
        if sent >= self._sent:
            self._sent, self._good_until = sent, sent + left


_REPLIES: Final = Decoder(list[ReplyMessage])
_TIME: Final = Decoder(int)
_CARD: Final = Decoder(Card)
_CARDS: Final = Decoder(list[Card])
_EFFECT: Final[Decoder[Effect | None]] = Decoder(Effect | None)
_SESSION: Final[Decoder[Session | None]] = Decoder(Session | None)
_AGENT: Final[Decoder[c.AgentSpec | None]] = Decoder(c.AgentSpec | None)
_AGENTS: Final = Decoder(list[c.AgentSpec])


class RemoteStore:
    """A turn's store in a child process: the worker's `Gateway` answers, and refuses what is not allowed."""

    def __init__(self, pipe: ChildPipe) -> None:
        self.pipe = pipe

    async def commit(self, commands: Sequence[c.Command]) -> list[Reply]:
        given = [{"type": type(command).__name__, "fields": command} for command in commands]
        return [reply_from(message) for message in await self.ask(_REPLIES, "commit", given)]

    async def now(self) -> int:
        return await self.ask(_TIME, "now")

    async def card(self, namespace: str, card_id: str) -> Card:
        return await self.ask(_CARD, "card", namespace, card_id)

    async def cards_between(self, namespace: str, first: str, last: str) -> list[Card]:
        cards: list[Card] = []
        while True:
            page = await self.cards_page(namespace, first, last, PAGE_CARDS)
            cards += page
            if len(page) < PAGE_CARDS:
                return cards
            first = page[-1].id  # the next page begins after it

    async def cards_page(self, namespace: str, after: str, before: str, limit: int) -> list[Card]:
        return await self.ask(_CARDS, "cards_page", namespace, after, before, limit)

    async def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]:
        cards: list[Card] = []
        for start in range(0, len(ids), PAGE_CARDS):
            page = ids[start : start + PAGE_CARDS]
            found = await self.ask(_CARDS, "cards_by_ids", namespace, page)
            cards += found
        return cards

    async def effect(self, namespace: str, key: str) -> Effect | None:
        return await self.ask(_EFFECT, "effect", namespace, key)

    async def session(self, namespace: str, session_id: str) -> Session | None:
        return await self.ask(_SESSION, "session", namespace, session_id)

    async def agent(self, namespace: str, name: str) -> c.AgentSpec | None:
        return await self.ask(_AGENT, "agent", namespace, name)

    async def agents(self, namespace: str) -> list[c.AgentSpec]:
        return await self.ask(_AGENTS, "agents", namespace)

    async def ask(self, decoder: Decoder[T], method: str, *arguments: Any) -> T:
        """Have the worker call a method of its store, and read the answer."""
        answer = await self.pipe.ask("store", {"method": method, "arguments": arguments})
        return decoder.decode(answer)
