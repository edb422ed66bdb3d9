"""The doorbell on Redis or Valkey: publish and subscribe, which keeps nothing and therefore delays nothing.

A subscribed connection takes no other commands, so rings are sent on a second one. The ping tests both: the
bell rings itself and waits for the echo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import ClassVar

from endwell.doorbell.server_bell import CLOSED, OnTopics, ServerDoorbell, Subscription
from endwell.doorbell.subjects import BELL, VERSION, bell_messages, topics_of
from endwell.redis_client import RedisClient, Word, literal_pattern
from endwell.runtime import Runtime

PATIENCE_SECONDS = 1.0


class RedisDoorbell(ServerDoorbell):
    """Rings every process that has opened a bell with the same prefix on the same server."""

    kind: ClassVar[str] = "redis"

    def __init__(
        self, url: str, *, runtime: Runtime, prefix: str = "", patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        half = patience_seconds / 2  # to ping, and to wait for the echo
        super().__init__(url, runtime=runtime, look_seconds=half, patience_seconds=half)
        self._prefix = prefix
        RedisClient(url)  # report a missing package or a malformed URL at once

    async def _connect(self, on_topics: OnTopics) -> Subscription:
        return RedisSubscription(self._url, self._prefix, self._runtime, on_topics)


class RedisSubscription:
    """Sends by one client and listens by another."""

    def __init__(self, url: str, prefix: str, runtime: Runtime, on_topics: OnTopics) -> None:
        self._sending = RedisClient(url)
        self._listening = RedisClient(url, blocking=True)
        self._prefix = prefix
        self._runtime = runtime
        self._sender = runtime.ids.new()
        self._on_topics = on_topics
        self._own_channel = f"{prefix}{VERSION}.echo.{self._sender}"
        self._echo = asyncio.Event()
        self._messages = self._listening.new_subscription()
        self._reading: asyncio.Task[None] | None = None
        self.why = CLOSED
        self.lost = asyncio.Event()

    async def listen(self) -> None:
        """Subscribe, and wait for the echo that proves it."""
        await self._messages.subscribe(f"{self._prefix}{BELL}", self._own_channel)
        await self._messages.psubscribe(f"{literal_pattern(self._prefix)}{VERSION}.*.cmd.agent.*.wakeup")
        self._reading = self._runtime.spawn(self._read_messages(), "endwell-doorbell-redis-reader")
        await self.ping()

    async def _read_messages(self) -> None:
        try:
            async for message in self._messages.listen():
                if message["type"] in ("message", "pmessage"):
                    self._on_message(message["channel"].decode(errors="replace"), message["data"])
        except Exception as error:
            self.why = str(error) or CLOSED
        finally:
            self.lost.set()
            self._echo.set()  # wake a ping that would wait in vain

    def _on_message(self, channel: str, payload: bytes) -> None:
        if channel == self._own_channel:
            self._echo.set()
        else:
            self._on_topics(topics_of(channel.removeprefix(self._prefix), payload, self._sender))

    async def send(self, topics: Collection[str]) -> None:
        messages = bell_messages(topics, self._sender)
        await self._publish(*((f"{self._prefix}{each.subject}", each.payload) for each in messages))

    async def ping(self) -> None:
        self._echo.clear()
        await self._publish((self._own_channel, b""))
        await self._echo.wait()
        if self.lost.is_set():
            raise ConnectionError(self.why)

    async def _publish(self, *messages: tuple[Word, Word]) -> None:
        await self._sending.ask_all([("PUBLISH", *message) for message in messages])

    async def end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        try:
            await self._messages.aclose()
        finally:
            await self._listening.close()
            await self._sending.close()
