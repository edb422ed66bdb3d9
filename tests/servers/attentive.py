"""A server that speaks enough NATS for a client, and remembers the order of its messages."""

from __future__ import annotations

import asyncio
import json
from typing import Self


class AttentiveNats:
    """`told` are the verbs that clients sent; each PING is answered at once."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.url = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "attentive", "version": "2.10.0", "max_payload": 1_000_000, "headers": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            verb, *words = line.decode().split(" ")
            self.told.append(verb.strip())
            if verb in ("PUB", "HPUB"):
                await reader.readexactly(int(words[-1]) + len(b"\r\n"))
            elif self.told[-1] == "PING":
                writer.write(b"PONG\r\n")
        writer.close()

    def has_confirmed(self, verb: str) -> bool:
        """Whether a PING came after the last of these verbs: its answer confirms that the server had them."""
        return verb in self.told and "PING" in self.told[::-1][: self.told[::-1].index(verb)]
