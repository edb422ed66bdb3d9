"""One connection that speaks Redis' protocol, with little between a command and its bytes.

redis-py takes 13 µs of processor time for each of many commands in one write, this 4; and it is in the way of
every ring. Commands are packed and answers taken apart by hiredis, and nothing stands between. For plain
addresses only (`redis://`, no options): whoever needs TLS, Unix sockets or options goes by redis-py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

DEFAULT_PORT = 6379
CONNECT_SECONDS = 3.0
CLIENT_NAME = "endwell"

Word = bytes | str | int | float
Heard = Callable[[Any], None]
"""Told what comes without having been asked for: messages of a subscription."""


class LineLost(Exception):
    """The connection is gone, or was never made."""


class Address(NamedTuple):
    """Where a server is, and how it lets us in."""

    host: str
    port: int
    username: str
    password: str
    database: int


def plain_address(url: str) -> Address | None:
    """None for what needs more than a socket, and for what is no address at all."""
    try:
        parts = urlsplit(url)
        path = parts.path.strip("/")
        if parts.scheme != "redis" or parts.query or parts.fragment or (path and not path.isdigit()):
            return None
        host, port = parts.hostname or "localhost", parts.port or DEFAULT_PORT
    except ValueError:
        return None
    return Address(host, port, unquote(parts.username or ""), unquote(parts.password or ""), int(path or 0))


class RedisLine:
    """Connects when it is first used, and again after it was lost; what was asked then is not repeated.

    `seconds`: how long an answer may take before the connection counts as lost. Without a limit it is for
    reads that wait at the server: one that is no longer wanted is ended there, by letting go.
    """

    def __init__(self, address: Address, *, seconds: float | None, heard: Heard | None = None) -> None:
        self._address = address
        self._seconds = seconds
        self._heard = heard
        self._wire: _Wire | None = None
        self._connecting: asyncio.Lock | None = None

    async def ask(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """One answer for each command; errors of the server stand among them."""
        wire = self._wire
        if wire is None or not wire.is_open:
            wire = await self._connected()
        try:
            if self._seconds is None:
                return await wire.ask(commands)
            async with asyncio.timeout(self._seconds):
                return await wire.ask(commands)
        except TimeoutError:
            wire.drop("the server does not answer")
            raise LineLost("the server does not answer") from None
        except asyncio.CancelledError:
            if self._seconds is None:
                wire.drop("the connection was let go")
            raise

    def close(self) -> None:
        """Let go; the next question makes a new connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.drop("the connection was closed")

    async def _connected(self) -> _Wire:
        """One at a time: several may ask before there is a connection."""
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._wire is not None and self._wire.is_open:
                return self._wire
            self._wire = None
            wire = await self._made()
            self._wire = wire
            return wire

    async def _made(self) -> _Wire:
        loop, (host, port, *_) = asyncio.get_running_loop(), self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, wire = await loop.create_connection(lambda: _Wire(self._heard), host, port)
                await self._let_in(wire)
        except TimeoutError:
            raise LineLost("the server does not answer") from None
        except OSError as error:
            raise LineLost(str(error) or type(error).__name__) from None
        return wire

    async def _let_in(self, wire: _Wire) -> None:
        """Say who we are. A server that does not want to know our name is one all the same."""
        _, _, username, password, database = self._address
        commands: list[Sequence[Word]] = [("CLIENT", "SETNAME", CLIENT_NAME)]
        if database:
            commands.insert(0, ("SELECT", database))
        if username:
            commands.insert(0, ("AUTH", username, password))
        elif password:
            commands.insert(0, ("AUTH", password))
        try:
            answers = await wire.ask(commands)
        except BaseException:
            wire.drop("the connection was not made")
            raise
        errors = error_type()
        for answer in answers[:-1]:
            if isinstance(answer, errors):
                wire.drop("the server does not let us in")
                raise LineLost(str(answer))


def has_hiredis() -> bool:
    """Whether what takes answers apart is there; it comes with `endwell[redis]`, but may be missing."""
    return find_spec("hiredis") is not None


def error_type() -> type[Exception]:
    """What an answer is that says that the server did not do it."""
    from hiredis import HiredisError

    return HiredisError


class _Wire(asyncio.Protocol):
    """The bytes of one connection. Answers come in the order of the questions."""

    def __init__(self, heard: Heard | None) -> None:
        from hiredis import Reader, pack_command

        self._reader = Reader()
        self._packed: Callable[..., bytes] = pack_command
        self._heard = heard
        self._waiting: deque[tuple[asyncio.Future[list[Any]], int]] = deque()
        self._answers: list[Any] = []
        self._transport: Any = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True

    async def ask(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Questions in one write; their answers. What cannot be packed is not waited for."""
        packed = b"".join([self._packed(tuple(words)) for words in commands])
        if not self.is_open:
            raise LineLost("the server closed the connection")
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, len(commands)))
        self._transport.write(packed)
        return await future

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while True:
            try:
                answer = self._reader.gets()
            except Exception as error:  # bytes that are no answer: nothing after them can be trusted
                self.drop(f"the server sent something else than an answer: {error}")
                return
            if answer is False:
                return
            self._take(answer)

    def _take(self, answer: Any) -> None:
        if not self._waiting:
            if self._heard is not None:
                self._heard(answer)
            return
        self._answers.append(answer)
        future, count = self._waiting[0]
        if len(self._answers) == count:
            self._waiting.popleft()
            answers, self._answers = self._answers, []
            if not future.done():
                future.set_result(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._fail(LineLost(str(exc) if exc else "the server closed the connection"))
        if self._heard is not None:
            self._heard(None)

    def drop(self, why: str) -> None:
        """End it now; whoever waits is told why."""
        self.is_open = False
        self._fail(LineLost(why))
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: LineLost) -> None:
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
