"""Dead letters that stand for an entry and not for a task: nobody could read it, so no store has it.

They live on `stream:dlq` alone, beside the tasks' dead letters, and say in `message_id` which entry it was.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from endwell.redis_client import RedisClient
from endwell.streams.entries import CUT
from endwell.streams.pending import entries_of
from endwell.streams.protocol import Names
from endwell.streams.server_check import unreadable_count

PAGE: Final = 100
_ID: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """One of them, as its dead letter tells it; `id` is its place on `stream:dlq`."""

    id: str
    task_id: str
    tool_name: str
    payload: str
    error: str
    reason: str
    fingerprint: str
    failed_at: str
    message_id: str
    stream: str

    @property
    def is_whole(self) -> bool:
        """Whether its payload is what was written."""
        return self.reason not in CUT and bool(self.payload)


def is_entry_id(word: str) -> bool:
    """Whether it names an entry of a stream; no task is named so."""
    return _ID.fullmatch(word) is not None


class UnreadableEntries:
    """Those of one installation."""

    def __init__(self, connection: RedisClient, names: Names) -> None:
        self._connection = connection
        self._names = names

    async def newest(self, limit: int, fingerprint: str | None = None) -> list[Unreadable]:
        """The newest first, of one kind or of all."""
        found: list[Unreadable] = []
        if limit <= 0 or not await unreadable_count(self._connection, self._names):
            return found
        async for each in self._backwards():
            if fingerprint in (None, each.fingerprint):
                found.append(each)
            if len(found) == limit:
                break
        return found

    async def _backwards(self) -> AsyncIterator[Unreadable]:
        last = "+"
        while True:
            page = entries_of(
                await self._connection.ask("XREVRANGE", self._names.dlq, last, "-", "COUNT", PAGE)
            )
            for place, raw in page.items():
                if place != last and (found := _unreadable(place, raw or ())):
                    yield found
            if len(page) < PAGE:
                return
            last = next(reversed(page))

    async def find(self, place: str) -> Unreadable | None:
        """The one at this place of the stream."""
        found = entries_of(await self._connection.ask("XRANGE", self._names.dlq, place, place))
        return _unreadable(place, found[place] or ()) if place in found else None

    async def remove(self, place: str) -> bool:
        """Whether it was there."""
        return bool(await self._connection.ask("XDEL", self._names.dlq, place))


def _unreadable(place: str, raw: Sequence[bytes]) -> Unreadable | None:
    """None for the dead letter of a task."""
    texts = [part.decode(errors="replace") for part in raw]
    fields = dict(zip(texts[::2], texts[1::2], strict=False))
    if not fields.get("message_id"):
        return None
    wanted = {name: fields.get(name, "") for name in Unreadable.__struct_fields__ if name != "id"}
    return Unreadable(id=place, **wanted)
