"""Commands of an installation whose turns travel over Redis Streams, and direct access to its server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from endwell.streams.entries import Malformed, malformed_letter, read_report, read_task
from endwell.streams.protocol import Names


class Server:
    """One prefix on a server, used by plain Redis commands."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = f"cli-{uuid4().hex}:"
        self.names = Names(self.prefix)
        self.client: Redis = Redis.from_url(url)

    def unreadable(self, *, is_result: bool = False, **fields: str | bytes) -> str:
        """Add an unreadable entry to the dead letters, as a worker or the orchestrator does."""
        raw = [part if isinstance(part, bytes) else part.encode() for pair in fields.items() for part in pair]
        found = (read_report if is_result else read_task)("7-1", raw)
        assert isinstance(found, Malformed)
        letter = malformed_letter(found, "2026-01-01T00:00:00.000000Z")
        place = self.client.xadd(self.names.dlq, dict(zip(letter[::2], letter[1::2], strict=True)))
        assert isinstance(place, bytes)
        return place.decode()

    def unreadable_at(self, place: str) -> Any:
        """The fields of an entry."""
        found: Any = self.client.xrange(self.names.dlq, place, place)
        return found[0][1]

    def close(self) -> None:
        for key in self.client.keys(f"{self.prefix}*"):
            self.client.delete(key)
        self.client.close()


@pytest.fixture
def server(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that carries the turns of every command in this test."""
    made = Server(redis_url)
    monkeypatch.setenv("ENDWELL__QUEUE__KIND", "redis")
    monkeypatch.setenv("ENDWELL__DOORBELL__KIND", "store")
    monkeypatch.setenv("ENDWELL__REDIS__URL", redis_url)
    monkeypatch.setenv("ENDWELL__REDIS__PREFIX", made.prefix)
    yield made
    made.close()
