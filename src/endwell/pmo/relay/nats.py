"""Messages on NATS: plain subjects, or a JetStream stream that acknowledges each message.

`Nats-Msg-Id` is the message's id, so that a stream keeps a repetition once. With plain subjects "sent" means
that the server has the message; subscribers that are away miss it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from endwell.doorbell.nats import flush_all, nats_client, nats_module
from endwell.errors import BadSetting
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.sink import SinkError
from endwell.settings import mask_url

CONTENT_TYPE = "application/cloudevents+json"


class NatsSink:
    """Publishes each message under its subject."""

    def __init__(self, url: str, *, is_stream: bool, timeout_seconds: float) -> None:
        if not url:
            raise BadSetting("relay.url or nats.url must name the NATS server", field="relay.url")
        nats_module()  # a missing package must show at start
        self.shown = mask_url(url)
        self._url = url
        self._is_stream = is_stream
        self._timeout = timeout_seconds
        self._client: Any = None
        self._lost = asyncio.Event()

    async def send(self, messages: Sequence[Outgoing]) -> None:
        taken = 0
        try:
            client = await self._connect()
            for message in messages:
                await self._publish(client, message)
                taken += 1
            await flush_all(client, self._timeout)
        except Exception as error:
            await self.close()
            sent = taken if self._is_stream else 0
            why = f"{self.shown}: {str(error) or type(error).__name__}"
            raise SinkError(why, sent=sent, at=taken if taken < len(messages) else None) from error

    async def _publish(self, client: Any, message: Outgoing) -> None:
        headers = {"Content-Type": CONTENT_TYPE, "Nats-Msg-Id": message.id}
        if self._is_stream:
            stream = client.jetstream(timeout=self._timeout)
            await stream.publish(message.subject, message.body, headers=headers)
        else:
            await client.publish(message.subject, message.body, headers=headers)

    async def _connect(self) -> Any:
        if self._client is None or self._lost.is_set():
            self._lost = asyncio.Event()
            self._client = await nats_client(self._url, self._lost)
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
