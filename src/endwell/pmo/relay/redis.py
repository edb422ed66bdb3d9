"""Messages on Redis or Valkey: published under their subjects, or appended to one stream of each namespace.

A stream keeps them for readers that come later; published ones reach only those who listen at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from endwell.doorbell.subjects import VERSION
from endwell.errors import BadSetting
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.sink import SinkError
from endwell.redis_client import RedisClient, Word
from endwell.settings import mask_url

LONGEST_STREAM: Final = 100_000
"""About how many messages stay in a stream."""


class RedisSink:
    """One round trip for each batch; a repetition appends again, with the same `id` field."""

    def __init__(self, url: str, *, prefix: str, is_stream: bool) -> None:
        if not url:
            raise BadSetting("relay.url or redis.url must name the Redis server", field="relay.url")
        self.shown = mask_url(url)
        self._prefix = prefix
        self._is_stream = is_stream
        self._client = RedisClient(url)

    async def send(self, messages: Sequence[Outgoing]) -> None:
        try:
            await self._client.ask_all([self._command(message) for message in messages])
        except Exception as error:
            raise SinkError(f"{self.shown}: {str(error) or type(error).__name__}") from error

    def _command(self, message: Outgoing) -> tuple[Word, ...]:
        if not self._is_stream:
            return ("PUBLISH", f"{self._prefix}{message.subject}", message.body)
        namespace = message.subject.removeprefix(f"{VERSION}.").partition(".")[0]
        key = f"{self._prefix}{VERSION}.{namespace}.evt"
        fields = ("id", message.id, "subject", message.subject, "event", message.body)
        return ("XADD", key, "MAXLEN", "~", LONGEST_STREAM, "*", *fields)

    async def close(self) -> None:
        await self._client.close()
