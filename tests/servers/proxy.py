"""A TCP proxy between a client and a server, which can break the line at a chosen moment."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Cut = Literal["before", "after", "silent"]


@dataclass
class Trap:
    """What to do when the client sends something that contains `marker`.

    `before`: the server never gets it, and keeps its end of the line open for a while.
    `after`: the server gets it and answers, and the line breaks before the client hears the answer.
    `silent`: the server gets it and answers, and nothing ever arrives.
    """

    marker: bytes
    cut: Cut
    sprung: asyncio.Event


class Proxy:
    """Listens on a port of its own; `url` is the server's URL by way of the proxy."""

    def __init__(self, server_url: str) -> None:
        self._target = urlsplit(server_url)
        self._trap: Trap | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server
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
        """Break the line the next time the client sends this."""
        self._trap = Trap(marker, cut, asyncio.Event())
        return self._trap

    def cut_all(self) -> None:
        """Break every line now."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        server_in, server_out = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._writers |= {client_out, server_out}
        answers = asyncio.create_task(_pump(server_in, client_out))
        questions = asyncio.create_task(self._ask(client_in, client_out, server_in, server_out, answers))
        self._tasks |= {answers, questions}

    async def _ask(
        self,
        client_in: asyncio.StreamReader,
        client_out: asyncio.StreamWriter,
        server_in: asyncio.StreamReader,
        server_out: asyncio.StreamWriter,
        answers: asyncio.Task[None],
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await client_in.read(1 << 20):
                trap = self._trap
                if trap is not None and trap.marker in data:
                    self._trap = None
                    answers.cancel()
                    await asyncio.wait([answers])  # or both would read
                    if trap.cut != "before":
                        server_out.write(data)
                        await server_in.read(1 << 20)
                    if trap.cut != "silent":
                        client_out.transport.abort()
                    trap.sprung.set()
                    return
                server_out.write(data)
        server_out.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(1 << 20):
            sink.write(data)
            await sink.drain()
    sink.transport.abort()
