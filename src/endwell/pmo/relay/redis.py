"""Messages on Redis or Valkey: published under their subjects, or appended to one stream of each namespace.

A stream keeps them for whoever reads later; published ones reach only those who listen at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from endwell.doorbell.redis import redis_client
from endwell.doorbell.subjects import VERSION
from endwell.errors import BadSetting
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.sink import SinkError
from endwell.settings import masked

LONGEST_STREAM: Final = 100_000
"""About so many messages stay in a stream."""


class RedisSink:
    """One pipeline for each batch; a repetition appends again, with the same `id` field."""

    def __init__(self, url: str, *, prefix: str, is_stream: bool) -> None:
        if not url:
            raise BadSetting("relay.url or redis.url must name the Redis server", field="relay.url")
        self.shown = masked(url)
        self._prefix = prefix
        self._is_stream = is_stream
        self._client = redis_client(url)

    async def send(self, messages: Sequence[Outgoing]) -> None:
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for message in messages:
                    self._add(pipeline, message)
                await pipeline.execute()
        except Exception as error:
            raise SinkError(f"{self.shown}: {str(error) or type(error).__name__}") from error

    def _add(self, pipeline: Any, message: Outgoing) -> None:
        if not self._is_stream:
            pipeline.publish(f"{self._prefix}{message.subject}", message.body)
            return
        namespace = message.subject.removeprefix(f"{VERSION}.").partition(".")[0]
        fields = {"id": message.id, "subject": message.subject, "event": message.body}
        pipeline.xadd(f"{self._prefix}{VERSION}.{namespace}.evt", fields, maxlen=LONGEST_STREAM)

    async def close(self) -> None:
        await self._client.aclose()
