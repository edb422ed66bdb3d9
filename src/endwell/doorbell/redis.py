"""The doorbell on Redis or Valkey: publish and subscribe, which keeps nothing and therefore delays nothing.

A subscribed connection takes no other commands, so rings are sent on a second one. Whether they come
through is tested as a whole: now and then the bell rings itself and listens for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, ClassVar

from endwell.doorbell.served import ANSWER_SECONDS, CLOSED, Line, ServedDoorbell, Take
from endwell.doorbell.subjects import BELL, VERSION, notes, topics_of
from endwell.errors import UsageError
from endwell.runtime import Runtime
from endwell.settings import masked

PATIENCE_SECONDS = 1.0
CONNECT_SECONDS = 3.0


def redis_client(url: str) -> Any:
    """A client that fails at once instead of trying again in silence: whoever uses it knows when to.

    It connects when it is first used.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise UsageError(
            "Redis needs the redis package", code="missing_package", hint='pip install "endwell[redis]"'
        ) from None
    try:
        return Redis.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            client_name="endwell",
        )
    except ValueError:  # without its words: they may quote a part of the password
        raise UsageError(f"{masked(url)} is not a Redis URL", hint="redis://host:6379/0") from None


class RedisDoorbell(ServedDoorbell):
    """Rings every process that has opened a bell with the same prefix on the same server."""

    kind: ClassVar[str] = "redis"

    def __init__(
        self, url: str, *, runtime: Runtime, prefix: str = "", patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        half = patience_seconds / 2  # to ask, and to wait for the answer
        super().__init__(url, runtime=runtime, look_seconds=half, patience_seconds=half)
        self._prefix = prefix
        redis_client(url)  # a missing package or a malformed URL is told at once

    async def _connect(self, take: Take) -> Line:
        line = _RedisLine(redis_client(self._url), self._prefix, self._runtime.ids.new(), take)
        try:
            await line.listen(self._runtime)
        except BaseException:
            await line.end()
            raise
        return line


class _RedisLine:
    def __init__(self, client: Any, prefix: str, sender: str, take: Take) -> None:
        self._client = client
        self._prefix = prefix
        self._sender = sender
        self._take = take
        self._own = f"{prefix}{VERSION}.echo.{sender}"
        self._pubsub = client.pubsub()
        self._echo = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self.why = CLOSED
        self.lost = asyncio.Event()

    async def listen(self, runtime: Runtime) -> None:
        """Subscribe, and make sure that it took effect."""
        await self._pubsub.subscribe(f"{self._prefix}{BELL}", self._own)
        await self._pubsub.psubscribe(f"{_literally(self._prefix)}{VERSION}.*.cmd.agent.*.wakeup")
        self._reading = runtime.spawn(self._read(), "endwell-doorbell-redis-reader")
        await self.ping()

    async def _read(self) -> None:
        try:
            async for message in self._pubsub.listen():
                if message["type"] in ("message", "pmessage"):
                    self._hear(message["channel"].decode(errors="replace"), message["data"])
        except Exception as error:
            self.why = str(error) or CLOSED
        finally:
            self.lost.set()
            self._echo.set()  # nobody else will

    def _hear(self, channel: str, payload: bytes) -> None:
        if channel == self._own:
            self._echo.set()
        else:
            self._take(topics_of(channel.removeprefix(self._prefix), payload, self._sender))

    async def send(self, topics: Collection[str]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for note in notes(topics, self._sender):
                pipeline.publish(f"{self._prefix}{note.subject}", note.payload)
            await pipeline.execute()

    async def ping(self) -> None:
        self._echo.clear()
        await self._client.publish(self._own, b"")
        await self._echo.wait()
        if self.lost.is_set():
            raise ConnectionError(self.why)

    async def end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        try:
            await self._pubsub.aclose()
        finally:
            await self._client.aclose()


def _literally(prefix: str) -> str:
    """A prefix inside a pattern, in which some characters would mean something."""
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in prefix)
