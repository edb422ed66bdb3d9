"""The doorbell of a PostgreSQL store: NOTIFY, received by every process that listens on the same database.

Its connection is not the store's: a bell is rung after the commit, never inside it, and topics rung while
one NOTIFY is under way go into the next. So notifying never delays a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, ClassVar

from endwell.doorbell.contract import EVERYTHING
from endwell.doorbell.server_bell import CLOSED, OnTopics, ServerDoorbell, Subscription
from endwell.runtime import Runtime
from endwell.store.postgres.connection import STEADY, connect

CHANNEL = "endwell"
LARGEST_PAYLOAD = 7900
"""Bytes of topics in one NOTIFY; more is sent as `EVERYTHING`. PostgreSQL takes less than 8000."""
RINGING = STEADY | {"synchronous_commit": "off"}
"""A NOTIFY is a commit, but a hint need not survive a crash of the server, nor wait for the disk."""
LOOK_SECONDS = 30.0
"""How long a connection may be silent before it is pinged, which costs the database a statement."""
PATIENCE_SECONDS = 1.0
POOLED = (
    "a connection pooler stands before PostgreSQL, which passes no NOTIFY on: "
    "connect directly, or set doorbell.kind to redis or nats; until then work is found by polling"
)
"""The backend PID changed, so a pooler sits in between and LISTEN will not work."""


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

    async def _connect(self, on_topics: OnTopics) -> Subscription:
        return PostgresSubscription(await connect(self._url, RINGING), on_topics)


class PostgresSubscription:
    """Sends and receives rings on one connection."""

    def __init__(self, connection: Any, on_topics: OnTopics) -> None:
        self._connection = connection
        self._pid = connection.get_server_pid()  # asked now: a closed connection has none
        self._on_topics = on_topics
        self.why = CLOSED
        self.lost = asyncio.Event()
        connection.add_termination_listener(lambda _: self.lost.set())

    async def listen(self) -> None:
        """Subscribe, and check that no pooler sits in between."""
        await self._connection.add_listener(CHANNEL, self._on_notification)
        if await self._connection.fetchval("SELECT pg_backend_pid()") != self._pid:
            raise ConnectionError(POOLED)

    async def send(self, topics: Collection[str]) -> None:
        await self._connection.execute("SELECT pg_notify($1, $2)", CHANNEL, pack_topics(topics))

    async def ping(self) -> None:
        await self._connection.execute("SELECT 1")

    async def end(self) -> None:
        self._connection.terminate()

    def _on_notification(self, connection: Any, pid: int, _channel: str, payload: object) -> None:
        if self._pid != pid:  # our own subscribers have been called already
            self._on_topics([topic for topic in str(payload).split("\n") if topic])


def pack_topics(topics: Collection[str]) -> str:
    """The topics as one payload, or `EVERYTHING` when they do not fit into one."""
    text = "\n".join(topics)
    try:
        fits = len(text.encode()) <= LARGEST_PAYLOAD
    except UnicodeEncodeError:
        return EVERYTHING
    return text if fits and "\0" not in text else EVERYTHING
