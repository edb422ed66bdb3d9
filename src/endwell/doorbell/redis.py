"""The doorbell on Redis or Valkey: publish and subscribe, which keeps nothing and therefore delays nothing.

A subscribed connection takes no other commands, so rings are sent on a second one. Whether they come
through is tested as a whole: now and then the bell rings itself and listens for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Protocol

from endwell.doorbell.server_bell import ANSWER_SECONDS, CLOSED, ServerDoorbell, Subscription, Take
from endwell.doorbell.subjects import BELL, VERSION, Note, notes, topics_of
from endwell.errors import UsageError
from endwell.runtime import Runtime
from endwell.runtime.redis_line import Address, RedisLine, error_type, has_hiredis, plain_address
from endwell.settings import masked

PATIENCE_SECONDS = 1.0
CONNECT_SECONDS = 3.0

Hear = Callable[[bytes, bytes], None]
"""Told a channel and what was published there."""


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


class RedisDoorbell(ServerDoorbell):
    """Rings every process that has opened a bell with the same prefix on the same server."""

    kind: ClassVar[str] = "redis"

    def __init__(
        self, url: str, *, runtime: Runtime, prefix: str = "", patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        half = patience_seconds / 2  # to ask, and to wait for the answer
        super().__init__(url, runtime=runtime, look_seconds=half, patience_seconds=half)
        self._prefix = prefix
        redis_client(url)  # a missing package or a malformed URL is told at once

    async def _connect(self, take: Take) -> Subscription:
        address = plain_address(self._url) if has_hiredis() else None
        way = LibrarySubscription(redis_client(self._url)) if address is None else PlainSubscription(address)
        line = RedisSubscription(way, self._prefix, self._runtime.ids.new(), take)
        try:
            await line.listen(self._runtime)
        except BaseException:
            await line.end()
            raise
        return line


class SubscriptionWay(Protocol):
    """How messages are sent and heard."""

    async def publish(self, notes: Sequence[Note]) -> None:
        """Returns when the server has them."""

    async def listen(self, channels: Sequence[str], pattern: str, hear: Hear, runtime: Runtime) -> None:
        """From now on `hear` is told channel and payload, and an empty channel with a reason at the end."""

    async def end(self) -> None:
        """Let go."""


class RedisSubscription:
    def __init__(self, way: SubscriptionWay, prefix: str, sender: str, take: Take) -> None:
        self._way = way
        self._prefix = prefix
        self._sender = sender
        self._take = take
        self._own = f"{prefix}{VERSION}.echo.{sender}"
        self._echo = asyncio.Event()
        self.why = CLOSED
        self.lost = asyncio.Event()

    async def listen(self, runtime: Runtime) -> None:
        """Subscribe, and make sure that it took effect."""
        pattern = f"{_literally(self._prefix)}{VERSION}.*.cmd.agent.*.wakeup"
        await self._way.listen((f"{self._prefix}{BELL}", self._own), pattern, self._hear, runtime)
        await self.ping()

    def _hear(self, channel: bytes, payload: bytes) -> None:
        name = channel.decode(errors="replace")
        if not name:
            self.why = payload.decode() or CLOSED
            self.lost.set()
            self._echo.set()  # nobody else will
        elif name == self._own:
            self._echo.set()
        else:
            self._take(topics_of(name.removeprefix(self._prefix), payload, self._sender))

    async def send(self, topics: Collection[str]) -> None:
        found = notes(topics, self._sender)
        await self._way.publish([Note(f"{self._prefix}{each.subject}", each.payload) for each in found])

    async def ping(self) -> None:
        self._echo.clear()
        await self._way.publish([Note(self._own, b"")])
        await self._echo.wait()
        if self.lost.is_set():
            raise ConnectionError(self.why)

    async def end(self) -> None:
        await self._way.end()


class PlainSubscription:
    """Two sockets."""

    def __init__(self, address: Address) -> None:
        self._sending = RedisLine(address, seconds=ANSWER_SECONDS)
        self._listening = RedisLine(address, seconds=ANSWER_SECONDS, heard=self._heard)
        self._hear: Hear = lambda channel, payload: None

    async def publish(self, notes: Sequence[Note]) -> None:
        _checked(await self._sending.ask([("PUBLISH", *note) for note in notes]))

    async def listen(self, channels: Sequence[str], pattern: str, hear: Hear, runtime: Runtime) -> None:
        self._hear = hear
        asked = [*(("SUBSCRIBE", channel) for channel in channels), ("PSUBSCRIBE", pattern)]
        for answer in _checked(await self._listening.ask(asked)):
            self._heard(answer)  # a ring may have come between two of them

    def _heard(self, answer: Any) -> None:
        if answer is None:
            self._hear(b"", b"")
        elif answer[0] in (b"message", b"pmessage"):
            self._hear(*answer[-2:])

    async def end(self) -> None:
        self._sending.close()
        self._listening.close()


def _checked(answers: list[Any]) -> list[Any]:
    refused = next((answer for answer in answers if isinstance(answer, error_type())), None)
    if refused is not None:
        raise ConnectionError(str(refused))
    return answers


class LibrarySubscription:
    """By redis-py: TLS, Unix sockets, and all its options."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pubsub = client.pubsub()
        self._reading: asyncio.Task[None] | None = None

    async def publish(self, notes: Sequence[Note]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for note in notes:
                pipeline.publish(*note)
            await pipeline.execute()

    async def listen(self, channels: Sequence[str], pattern: str, hear: Hear, runtime: Runtime) -> None:
        await self._pubsub.subscribe(*channels)
        await self._pubsub.psubscribe(pattern)
        self._reading = runtime.spawn(self._read(hear), "endwell-doorbell-redis-reader")

    async def _read(self, hear: Hear) -> None:
        why = ""
        try:
            async for message in self._pubsub.listen():
                if message["type"] in ("message", "pmessage"):
                    hear(message["channel"], message["data"])
        except Exception as error:
            why = str(error)
        finally:
            hear(b"", why.encode())

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
