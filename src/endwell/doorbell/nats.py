"""The doorbell on NATS: plain subjects without a stream, so a ring without a listener is not kept."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, ClassVar

from endwell.doorbell.server_bell import ANSWER_SECONDS, CLOSED, OnTopics, ServerDoorbell, Subscription
from endwell.doorbell.subjects import BELL, VERSION, bell_messages, topics_of
from endwell.errors import UsageError
from endwell.runtime import Runtime
from endwell.settings import each_url

PATIENCE_SECONDS = 1.0
CONNECT_SECONDS = 3
_NEVER_SECONDS = 10**6


def nats_module() -> Any:
    """Import nats-py, which only users of NATS need to have."""
    try:
        import nats
    except ImportError:
        raise UsageError(
            "NATS needs the nats-py package", code="missing_package", hint='pip install "endwell[nats]"'
        ) from None
    return nats


async def nats_client(url: str, lost: asyncio.Event, errors: list[Exception] | None = None) -> Any:
    """Connect to one of the servers in `url`, separated by commas.

    `lost` is set when the connection breaks, and when the server forbids something: a connection that may not
    listen is of no use. `errors` then has the server's last error. The client does not reconnect by itself.
    """
    nats = nats_module()
    client = nats.NATS()
    errors = [] if errors is None else errors

    async def on_closed() -> None:
        lost.set()

    async def on_error(error: Exception) -> None:
        errors[:] = [error]
        if "permission" in str(error).lower():
            lost.set()

    try:
        await client.connect(
            each_url(url),
            name="endwell",
            no_echo=True,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_SECONDS,
            ping_interval=_NEVER_SECONDS,  # the doorbell pings, and notices a late answer
            closed_cb=on_closed,
            error_cb=on_error,
        )
    except nats.errors.NoServersError:
        reason = errors[-1] if errors else "none answers"
        raise ConnectionError(f"no server accepts the connection: {reason}") from None
    except BaseException:
        await client.close()
        raise
    return client


async def flush_all(client: Any, seconds: float) -> None:
    """Return when the server has all that was published and subscribed to.

    One flush does not suffice: its PING overtakes what the client has yet to write. When the first PING is
    answered, the rest is written; when the second one is, the server has it.
    """
    for _ in range(2):
        await client.flush(max(1, int(seconds)))


class NatsDoorbell(ServerDoorbell):
    """Rings every process that has opened a bell at the same servers."""

    kind: ClassVar[str] = "nats"

    def __init__(self, url: str, *, runtime: Runtime, patience_seconds: float = PATIENCE_SECONDS) -> None:
        half = patience_seconds / 2  # to ping, and to wait for the answer
        super().__init__(url, runtime=runtime, look_seconds=half, patience_seconds=half)
        nats_module()  # report a missing package at once

    async def _connect(self, on_topics: OnTopics) -> Subscription:
        lost, errors = asyncio.Event(), list[Exception]()
        client = await nats_client(self._url, lost, errors)
        return NatsSubscription(client, lost, errors, self._runtime.ids.new(), on_topics)


class NatsSubscription:
    """Sends and receives rings on one connection."""

    def __init__(
        self,
        client: Any,
        lost: asyncio.Event,
        errors: list[Exception],
        sender: str,
        on_topics: OnTopics,
    ) -> None:
        self._client = client
        self._errors = errors
        self._sender = sender
        self._on_topics = on_topics
        self.lost = lost

    @property
    def why(self) -> str:
        return str(self._errors[-1]) if self._errors else CLOSED

    async def listen(self) -> None:
        """Subscribe, and wait until the server knows it."""
        for subject in (BELL, f"{VERSION}.*.*.cmd.agent.*.wakeup"):
            await self._client.subscribe(subject, cb=self._on_message)
        await flush_all(self._client, 2 * ANSWER_SECONDS)

    async def _on_message(self, message: Any) -> None:
        self._on_topics(topics_of(message.subject, message.data, self._sender))

    async def send(self, topics: Collection[str]) -> None:
        for message in bell_messages(topics, self._sender):
            await self._client.publish(message.subject, message.payload)
        await flush_all(self._client, 2 * ANSWER_SECONDS)

    async def ping(self) -> None:
        await self._client.flush(int(2 * ANSWER_SECONDS))

    async def end(self) -> None:
        await self._client.close()
