"""The doorbell on NATS: plain subjects, without a stream. A ring that nobody hears is not kept."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, ClassVar

from endwell.doorbell.server_bell import ANSWER_SECONDS, CLOSED, ServerDoorbell, Subscription, Take
from endwell.doorbell.subjects import BELL, VERSION, notes, topics_of
from endwell.errors import UsageError
from endwell.runtime import Runtime
from endwell.settings import each_url

PATIENCE_SECONDS = 1.0
CONNECT_SECONDS = 3
_NEVER_SECONDS = 10**6


def nats_module() -> Any:
    """nats-py, which only users of NATS need to have."""
    try:
        import nats
    except ImportError:
        raise UsageError(
            "NATS needs the nats-py package", code="missing_package", hint='pip install "endwell[nats]"'
        ) from None
    return nats


async def nats_client(url: str, lost: asyncio.Event, remarks: list[Exception] | None = None) -> Any:
    """A connection to one of the servers in `url`, separated by commas; `lost` is set when it breaks.

    Also when the server forbids something: a line that hears nothing is worse than none. The last of the
    server's `remarks` then says what. It does not come back by itself: whoever uses it knows when to try
    again, and what was missed meanwhile.
    """
    nats = nats_module()
    client = nats.NATS()
    remarks = [] if remarks is None else remarks

    async def closed() -> None:
        lost.set()

    async def noted(error: Exception) -> None:
        remarks[:] = [error]
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
            ping_interval=_NEVER_SECONDS,  # we ask ourselves, and notice when no answer comes
            closed_cb=closed,
            error_cb=noted,
        )
    except nats.errors.NoServersError:
        raise ConnectionError(
            f"no server lets us in: {remarks[-1] if remarks else 'none is there'}"
        ) from None
    except BaseException:
        await client.close()
        raise
    return client


async def confirmed(client: Any, seconds: float) -> None:
    """Returns when the server has all that was published and subscribed to.

    One flush does not say so: its PING goes ahead of what the client has yet to write. When that is answered,
    the rest is written; when a second one is, the server has it.
    """
    for _ in range(2):
        await client.flush(max(1, int(seconds)))


class NatsDoorbell(ServerDoorbell):
    """Rings every process that has opened a bell at the same servers."""

    kind: ClassVar[str] = "nats"

    def __init__(self, url: str, *, runtime: Runtime, patience_seconds: float = PATIENCE_SECONDS) -> None:
        half = patience_seconds / 2  # to ask, and to wait for the answer
        super().__init__(url, runtime=runtime, look_seconds=half, patience_seconds=half)
        nats_module()  # a missing package is told at once

    async def _connect(self, take: Take) -> Subscription:
        lost, remarks = asyncio.Event(), list[Exception]()
        client = await nats_client(self._url, lost, remarks)
        line = NatsSubscription(client, lost, remarks, self._runtime.ids.new(), take)
        try:
            await line.listen()
        except BaseException:
            await line.end()
            raise
        return line


class NatsSubscription:
    def __init__(
        self, client: Any, lost: asyncio.Event, remarks: list[Exception], sender: str, take: Take
    ) -> None:
        self._client = client
        self._remarks = remarks
        self._sender = sender
        self._take = take
        self.lost = lost

    @property
    def why(self) -> str:
        return str(self._remarks[-1]) if self._remarks else CLOSED

    async def listen(self) -> None:
        """Subscribe, and make sure that the server knows it."""
        for subject in (BELL, f"{VERSION}.*.*.cmd.agent.*.wakeup"):
            await self._client.subscribe(subject, cb=self._hear)
        await confirmed(self._client, 2 * ANSWER_SECONDS)

    async def _hear(self, message: Any) -> None:
        self._take(topics_of(message.subject, message.data, self._sender))

    async def send(self, topics: Collection[str]) -> None:
        for note in notes(topics, self._sender):
            await self._client.publish(note.subject, note.payload)
        await confirmed(self._client, 2 * ANSWER_SECONDS)

    async def ping(self) -> None:
        await self._client.flush(int(2 * ANSWER_SECONDS))

    async def end(self) -> None:
        await self._client.close()
