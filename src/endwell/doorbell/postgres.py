"""The doorbell of a PostgreSQL store: NOTIFY, heard by every process that listens on the same database.

Its connection is not the store's: a bell is rung after the commit, never inside it, and while one NOTIFY
is under way everything that is rung goes into the next. So notifying never holds up a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, ClassVar

from endwell.doorbell.contract import EVERYTHING
from endwell.doorbell.server_bell import CLOSED, ServerDoorbell, Subscription, Take
from endwell.runtime import Runtime
from endwell.store.postgres.connection import STEADY, connect

CHANNEL = "endwell"
LARGEST_PAYLOAD = 7900
"""Bytes of topics in one NOTIFY; more is sent as `EVERYTHING`. PostgreSQL takes less than 8000."""
RINGING = STEADY | {"synchronous_commit": "off"}
"""A NOTIFY is a commit, but a hint need not outlive the server, nor make others wait for the disk."""
LOOK_SECONDS = 30.0
"""How often a silent line is asked: each time costs the database a statement."""
PATIENCE_SECONDS = 1.0
POOLED = (
    "a connection pooler stands before PostgreSQL, which passes no NOTIFY on: "
    "connect directly, or set doorbell.kind to redis or nats; until then work is found by polling"
)
"""What answers is not the process that let us in: who listens there is somebody else's tomorrow."""


class PostgresDoorbell(ServerDoorbell):
    """Rings every process that has opened a bell on the same database."""

    kind: ClassVar[str] = "postgresql"

    def __init__(
        self,
        url: str,
        *,
        runtime: Runtime,
        look_seconds: float = LOOK_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(url, runtime=runtime, look_seconds=look_seconds, patience_seconds=patience_seconds)

    async def _connect(self, take: Take) -> Subscription:
        line = PostgresSubscription(await connect(self._url, RINGING), take)
        try:
            await line.listen()
        except BaseException:
            await line.end()
            raise
        return line


class PostgresSubscription:
    def __init__(self, connection: Any, take: Take) -> None:
        self._connection = connection
        self._pid = connection.get_server_pid()  # a closed connection has none, and may still hear
        self._take = take
        self.why = CLOSED
        self.lost = asyncio.Event()
        connection.add_termination_listener(lambda _: self.lost.set())

    async def listen(self) -> None:
        await self._connection.add_listener(CHANNEL, self._hear)
        if await self._connection.fetchval("SELECT pg_backend_pid()") != self._pid:
            raise ConnectionError(POOLED)

    async def send(self, topics: Collection[str]) -> None:
        await self._connection.execute("SELECT pg_notify($1, $2)", CHANNEL, packed(topics))

    async def ping(self) -> None:
        await self._connection.execute("SELECT 1")

    async def end(self) -> None:
        self._connection.terminate()

    def _hear(self, connection: Any, pid: int, _channel: str, payload: object) -> None:
        if self._pid != pid:  # our own rings have been heard already
            self._take([topic for topic in str(payload).split("\n") if topic])


def packed(topics: Collection[str]) -> str:
    """The topics as one payload, or `EVERYTHING` when they do not fit into one."""
    text = "\n".join(topics)
    try:
        fits = len(text.encode()) <= LARGEST_PAYLOAD
    except UnicodeEncodeError:
        return EVERYTHING
    return text if fits and "\0" not in text else EVERYTHING
