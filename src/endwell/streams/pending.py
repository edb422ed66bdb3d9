"""Pending entries of a group: read, but not acknowledged. Finds the overdue ones and takes them.

That takes two questions. XPENDING says who held an entry, which the answer to a claim does not. Then
XAUTOCLAIM takes the entries, page by page, or XCLAIM where the server does not know XAUTOCLAIM. The server's
answer decides which of the two is used, not the version that it reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from endwell.redis_client import RedisClient, Refusal, Word
from endwell.streams.entries import RawFields

PAGE = 100
START = "0-0"


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A pending entry; a consumer's name may be any bytes."""

    message_id: str
    consumer: bytes
    idle_ms: int
    deliveries: int


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    """An overdue entry that is ours now; `raw` is None if it was deleted while it was pending."""

    message_id: str
    old_consumer: bytes
    raw: RawFields


class PendingEntries:
    """The pending entries of one group."""

    def __init__(self, redis: RedisClient, stream: str, group: str) -> None:
        self._redis = redis
        self._stream = stream
        self._group = group
        self.knows_idle = True
        self.knows_autoclaim = True

    async def held_by(self, consumer: str, limit: int = PAGE) -> list[Pending]:
        """The pending entries of one consumer, at most `limit`."""
        return await self._list_pending("-", "+", limit, consumer)

    async def take_overdue(self, consumer: str, idle_ms: int) -> list[Overdue]:
        """Claim entries that no consumer has touched for `idle_ms`, with their last holders."""
        holders = await self._find_holders(idle_ms)
        if not holders:
            return []
        found = await self._claim_overdue(consumer, idle_ms)
        if found is None:
            found = await self._claim_by_id(consumer, idle_ms, list(holders))
        gone = await self._find_deleted([each for each in holders if each not in found])
        return [
            Overdue(message_id=each, old_consumer=holders.get(each, b""), raw=raw)
            for each, raw in {**found, **dict.fromkeys(gone)}.items()
        ]

    async def find_overdue(self, idle_ms: int) -> dict[str, int]:
        """For how many milliseconds overdue entries were left alone; the oldest of them, at most a page."""
        page = await self._read_page(idle_ms, "-")
        return {each.message_id: each.idle_ms for each in page if each.idle_ms >= idle_ms}

    async def is_held_by_other(self, message_id: str, consumer: str) -> bool:
        """Whether another consumer has read this entry and not acknowledged it."""
        found = await self._list_pending(message_id, message_id, 1)
        return any(each.consumer != consumer.encode() for each in found)

    async def _find_holders(self, idle_ms: int) -> dict[str, bytes]:
        """The holder of each overdue entry."""
        holders: dict[str, bytes] = {}
        start = "-"
        while True:
            page = await self._read_page(idle_ms, start)
            holders |= {each.message_id: each.consumer for each in page if each.idle_ms >= idle_ms}
            if len(page) < PAGE:
                return holders
            start = _next_id(page[-1].message_id)

    async def _read_page(self, idle_ms: int, start: str) -> list[Pending]:
        if self.knows_idle:
            try:
                return await self._list_pending("IDLE", idle_ms, start, "+", PAGE)
            except Refusal as refusal:
                if not _is_unknown(refusal):
                    raise
                self.knows_idle = False
        return await self._list_pending(start, "+", PAGE)

    async def _list_pending(self, *words: Word) -> list[Pending]:
        rows = await self._redis.ask("XPENDING", self._stream, self._group, *words)
        return [_read_pending(row) for row in rows]

    async def _claim_overdue(self, consumer: str, idle_ms: int) -> dict[str, RawFields] | None:
        """Take overdue entries; None if the server does not know the command."""
        found: dict[str, RawFields] = {}
        cursor = START
        while self.knows_autoclaim:
            words = ("XAUTOCLAIM", self._stream, self._group, consumer, idle_ms, cursor, "COUNT", PAGE)
            try:
                cursor, entries = read_autoclaim_reply(await self._redis.ask(*words))
            except Refusal as refusal:
                if not _is_unknown(refusal):
                    raise
                self.knows_autoclaim = False
                return None
            found |= entries
            if cursor == START:
                return found
        return None

    async def _claim_by_id(self, consumer: str, idle_ms: int, ids: Sequence[str]) -> dict[str, RawFields]:
        found: dict[str, RawFields] = {}
        for first in range(0, len(ids), PAGE):
            some = ids[first : first + PAGE]
            answer = await self._redis.ask("XCLAIM", self._stream, self._group, consumer, idle_ms, *some)
            found |= entries_by_id(answer)
        return found

    async def _find_deleted(self, ids: Sequence[str]) -> list[str]:
        """Those that no longer exist; the others were refreshed in time and stay with their holders."""
        if not ids:
            return []
        looks = [("XRANGE", self._stream, each, each) for each in ids]
        answers = await self._redis.ask_all(looks)
        return [each for each, answer in zip(ids, answers, strict=True) if not answer]


def read_autoclaim_reply(reply: Sequence[Any]) -> tuple[str, dict[str, RawFields]]:
    """Cursor and entries. Since Redis 7 a third part names deleted entries; before, they came as null."""
    entries = entries_by_id(reply[1])
    if len(reply) > 2:
        entries |= {_as_text(each): None for each in reply[2] or ()}
    return _as_text(reply[0]), entries


def entries_by_id(reply: Sequence[Any] | None) -> dict[str, RawFields]:
    """Entries by id; a deleted one may come as null, or as an id with null."""
    return {_as_text(entry[0]): entry[1] for entry in reply or () if entry}


def _read_pending(row: Sequence[Any]) -> Pending:
    return Pending(
        message_id=_as_text(row[0]), consumer=_as_bytes(row[1]), idle_ms=int(row[2]), deliveries=int(row[3])
    )


def _is_unknown(refusal: Refusal) -> bool:
    """Whether the server does not know the command, or an option of it."""
    text = str(refusal).lower()
    return any(
        part in text for part in ("unknown command", "syntax error", "wrong number", "invalid stream id")
    )


def _next_id(message_id: str) -> str:
    first, _, second = message_id.partition("-")
    return f"{first}-{int(second) + 1}"


def _as_bytes(word: bytes | str) -> bytes:
    return word.encode() if isinstance(word, str) else word


def _as_text(word: bytes | str) -> str:
    return word.decode() if isinstance(word, bytes) else word
