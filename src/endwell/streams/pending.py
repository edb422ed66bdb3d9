"""Entries that were read and not acknowledged: whose they are, and which have been left alone for too long.

Reclaiming takes two looks. XPENDING says who had an entry, which the answer of a claim does not; then the
entry is taken by XAUTOCLAIM, whose cursor is followed to its end, or by XCLAIM where the server does not know
XAUTOCLAIM. Which of the two is decided by what the server answers, not by the version it claims to be.
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
    """One pending entry as the server knows it; a consumer's name may be any bytes."""

    message_id: str
    consumer: bytes
    idle_ms: int
    deliveries: int


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is now ours; `raw` is None where it was deleted while it was pending."""

    message_id: str
    old_consumer: bytes
    raw: RawFields


class PendingEntries:
    """The pending entries of one group."""

    def __init__(self, connection: RedisClient, stream: str, group: str) -> None:
        self._connection = connection
        self._stream = stream
        self._group = group
        self.knows_idle = True
        self.knows_autoclaim = True

    async def of(self, consumer: str, limit: int = PAGE) -> list[Pending]:
        """What one consumer has."""
        return await self._listed("-", "+", limit, consumer)

    async def take_overdue(self, consumer: str, idle_ms: int) -> list[Overdue]:
        """Claim what nobody has touched for so long, and say whose it was."""
        holders = await self._holders(idle_ms)
        if not holders:
            return []
        found = await self._autoclaimed(consumer, idle_ms)
        if found is None:
            found = await self._claimed(consumer, idle_ms, list(holders))
        gone = await self._deleted([each for each in holders if each not in found])
        return [
            Overdue(message_id=each, old_consumer=holders.get(each, b""), raw=raw)
            for each, raw in {**found, **dict.fromkeys(gone)}.items()
        ]

    async def overdue(self, idle_ms: int) -> dict[str, int]:
        """For how long entries were left alone that are overdue: the oldest of them, at most a page."""
        page = await self._page(idle_ms, "-")
        return {each.message_id: each.idle_ms for each in page if each.idle_ms >= idle_ms}

    async def _holders(self, idle_ms: int) -> dict[str, bytes]:
        """Who has what, of that which is overdue."""
        holders: dict[str, bytes] = {}
        start = "-"
        while True:
            page = await self._page(idle_ms, start)
            holders |= {each.message_id: each.consumer for each in page if each.idle_ms >= idle_ms}
            if len(page) < PAGE:
                return holders
            start = _next_id(page[-1].message_id)

    async def _page(self, idle_ms: int, start: str) -> list[Pending]:
        if self.knows_idle:
            try:
                return await self._listed("IDLE", idle_ms, start, "+", PAGE)
            except Refusal as refusal:
                if not _is_unknown(refusal):
                    raise
                self.knows_idle = False
        return await self._listed(start, "+", PAGE)

    async def _listed(self, *words: Word) -> list[Pending]:
        rows = await self._connection.ask("XPENDING", self._stream, self._group, *words)
        return [_pending(row) for row in rows]

    async def _autoclaimed(self, consumer: str, idle_ms: int) -> dict[str, RawFields] | None:
        """None where the server does not know the command."""
        found: dict[str, RawFields] = {}
        cursor = START
        while self.knows_autoclaim:
            words = ("XAUTOCLAIM", self._stream, self._group, consumer, idle_ms, cursor, "COUNT", PAGE)
            try:
                cursor, entries = autoclaim_reply(await self._connection.ask(*words))
            except Refusal as refusal:
                if not _is_unknown(refusal):
                    raise
                self.knows_autoclaim = False
                return None
            found |= entries
            if cursor == START:
                return found
        return None

    async def _claimed(self, consumer: str, idle_ms: int, ids: Sequence[str]) -> dict[str, RawFields]:
        found: dict[str, RawFields] = {}
        for first in range(0, len(ids), PAGE):
            some = ids[first : first + PAGE]
            answer = await self._connection.ask("XCLAIM", self._stream, self._group, consumer, idle_ms, *some)
            found |= entries_of(answer)
        return found

    async def _deleted(self, ids: Sequence[str]) -> list[str]:
        """Those of them that exist no more; the others were refreshed meanwhile and are left alone."""
        if not ids:
            return []
        looks = [("XRANGE", self._stream, each, each) for each in ids]
        answers = await self._connection.ask_all(looks)
        return [each for each, answer in zip(ids, answers, strict=True) if not answer]


def autoclaim_reply(reply: Sequence[Any]) -> tuple[str, dict[str, RawFields]]:
    """Cursor and entries. Since Redis 7 a third part names deleted entries; before, they came as nothing."""
    entries = entries_of(reply[1])
    if len(reply) > 2:
        entries |= {_text(each): None for each in reply[2] or ()}
    return _text(reply[0]), entries


def entries_of(reply: Sequence[Any] | None) -> dict[str, RawFields]:
    """Entries by id; one that was deleted may come as nothing at all, or as an id with nothing."""
    return {_text(entry[0]): entry[1] for entry in reply or () if entry}


def _pending(row: Sequence[Any]) -> Pending:
    return Pending(
        message_id=_text(row[0]), consumer=_bytes(row[1]), idle_ms=int(row[2]), deliveries=int(row[3])
    )


def _is_unknown(refusal: Refusal) -> bool:
    """Whether the server does not know a command, or an option of one."""
    text = str(refusal).lower()
    return any(
        part in text for part in ("unknown command", "syntax error", "wrong number", "invalid stream id")
    )


def _next_id(message_id: str) -> str:
    first, _, second = message_id.partition("-")
    return f"{first}-{int(second) + 1}"


def _bytes(word: bytes | str) -> bytes:
    return word.encode() if isinstance(word, str) else word


def _text(word: bytes | str) -> str:
    return word.decode() if isinstance(word, bytes) else word
