"""A TCP proxy between a client and a server, which can break the connection at a chosen moment.

`cut_all` closes every connection; `black_hole` passes nothing in either direction and closes nothing, like a
vanished network; `heal` passes everything again, also what was held back; `delay_seconds` delays every piece;
`trap` swallows one request or its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Cut = Literal["before", "after", "silent"]
PIECE = 1 << 20


@dataclass
class Trap:
    """What to do when the client sends a message that contains `marker`.

    `before`: the server never gets it, and keeps its end of the connection open for a while.
    `after`: the server gets it and answers, and the connection breaks before the client receives the answer.
    `silent`: the server gets it and answers, and the client receives nothing.
    """

    marker: bytes
    cut: Cut
    sprung: asyncio.Event


@dataclass
class Side:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def abort(self) -> None:
        self.writer.transport.abort()


class Proxy:
    """Listens on a port of its own; `url` is the server's URL through the proxy."""

    def __init__(self, server_url: str) -> None:
        self._target = urlsplit(server_url)
        self._trap: Trap | None = None
        self._sides: list[Side] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server
        self._passable = asyncio.Event()
        self._passable.set()
        self.delay_seconds = 0.0
        self.held_back = 0
        self.accepted = 0
        self.url = ""

    async def __aenter__(self) -> Proxy:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._listening.sockets[0].getsockname()[1]
        user = f"{self._target.username}@" if self._target.username else ""
        self.url = urlunsplit(self._target._replace(netloc=f"{user}127.0.0.1:{port}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        self.cut_all()
        for task in self._tasks:
            task.cancel()

    def trap(self, marker: bytes, cut: Cut) -> Trap:
        """Break the connection the next time the client sends this."""
        self._trap = Trap(marker, cut, asyncio.Event())
        return self._trap

    def cut_all(self) -> None:
        """Close every connection now."""
        for side in self._sides:
            side.abort()
        self._sides.clear()

    def black_hole(self) -> None:
        """Pass nothing from now on, and close nothing; `held_back` counts what was held back.

        New connections are accepted and lead nowhere.
        """
        self.held_back = 0
        self._passable.clear()

    def heal(self) -> None:
        """Pass what was held back, and everything from now on."""
        self._passable.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        client = Side(reader, writer)
        self._sides.append(client)
        await self._passable.wait()
        try:
            server = Side(*await asyncio.open_connection(self._target.hostname, self._target.port))
        except OSError:
            client.abort()
            return
        self._sides.append(server)
        answers = asyncio.create_task(self._pump(server, client))
        questions = asyncio.create_task(self._ask(client, server, answers))
        self._tasks |= {answers, questions}

    async def _ask(self, client: Side, server: Side, answers: asyncio.Task[None]) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._piece(client):
                trap = self._trap
                if trap is not None and trap.marker in data:
                    self._trap = None
                    await _spring(trap, data, client, server, answers)
                    return
                server.writer.write(data)
        await self._passable.wait()
        server.abort()

    async def _pump(self, source: Side, sink: Side) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._piece(source):
                sink.writer.write(data)
                await sink.writer.drain()
        await self._passable.wait()
        sink.abort()

    async def _piece(self, side: Side) -> bytes:
        data = await side.reader.read(PIECE)
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        if not self._passable.is_set():
            self.held_back += 1
            await self._passable.wait()
        return data


async def _spring(trap: Trap, data: bytes, client: Side, server: Side, answers: asyncio.Task[None]) -> None:
    answers.cancel()
    await asyncio.wait([answers])  # or both would read
    if trap.cut != "before":
        server.writer.write(data)
        await server.reader.read(PIECE)
    if trap.cut != "silent":
        client.abort()
    trap.sprung.set()
