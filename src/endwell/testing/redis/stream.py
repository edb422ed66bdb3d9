"""One stream of the simulated server: its entries, its groups, and the ids of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from endwell.redis_client import Refusal, Word

EntryId = tuple[int, int]
Fields = list[bytes]

FIRST: Final[EntryId] = (0, 0)
LAST: Final[EntryId] = (2**64 - 1, 2**64 - 1)


@dataclass
class PendingEntry:
    """Which consumer has an entry, since when, and how often it was delivered."""

    consumer: bytes
    at_ms: int
    times: int


@dataclass
class StreamGroup:
    """The last entry that was delivered, the pending ones, and when each consumer was active."""

    last: EntryId
    pending: dict[EntryId, PendingEntry] = field(default_factory=dict)
    consumers: dict[bytes, int] = field(default_factory=dict)

    def sorted_pending(self) -> list[tuple[EntryId, PendingEntry]]:
        """Pending entries by id."""
        return sorted(self.pending.items(), key=lambda item: item[0])

    def held_by(self, consumer: bytes) -> int:
        """How many entries one consumer has."""
        return sum(entry.consumer == consumer for entry in self.pending.values())


@dataclass
class Stream:
    """Entries in the order of their ids."""

    entries: dict[EntryId, Fields] = field(default_factory=dict)
    groups: dict[bytes, StreamGroup] = field(default_factory=dict)
    last: EntryId = FIRST

    def add(self, now_ms: int, fields: Fields) -> EntryId:
        """Ids rise, also when the clock does not."""
        newest, number = self.last
        self.last = (now_ms, 0) if now_ms > newest else (newest, number + 1)
        self.entries[self.last] = fields
        return self.last

    def entries_between(self, first: EntryId, last: EntryId) -> Iterator[tuple[EntryId, Fields]]:
        """Entries by id, both ends included."""
        return ((each, fields) for each, fields in self.entries.items() if first <= each <= last)

    def entries_after(self, last: EntryId, limit: int) -> list[tuple[EntryId, Fields]]:
        """At most `limit` entries behind this id."""
        if not self.entries or next(reversed(self.entries)) <= last:
            return []
        return [(each, fields) for each, fields in self.entries.items() if each > last][:limit]

    def remove(self, ids: Iterable[EntryId]) -> int:
        """How many of them were there. Pending entries stay pending."""
        return sum(self.entries.pop(each, None) is not None for each in ids)

    def trim(self, kind: bytes, threshold: bytes) -> int:
        """How many entries went. What `~` would leave for later goes at once here."""
        if kind == b"MINID":
            least = parse_id(threshold)
            return self.remove([each for each in self.entries if each < least])
        surplus = max(len(self.entries) - int(threshold), 0)
        return self.remove(list(self.entries)[:surplus])


@dataclass(eq=False)
class BlockedRead:
    """A read that waits at the server for new entries; `is_over` says that its process has ended."""

    key: bytes
    words: Sequence[Word]
    milliseconds: int
    answer: Any = None
    event: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: Callable[[], bool] = lambda: False

    def give_answer(self, answer: Any) -> None:
        """End the wait."""
        self.answer = answer
        self.event.set()


def parse_id(word: bytes, *, number: int = 0) -> EntryId:
    """An id as it was sent; `number` stands for a missing second part."""
    if word in (b"-", b"+"):
        return FIRST if word == b"-" else LAST
    first, _, second = word.partition(b"-")
    if not first.isdigit() or (second and not second.isdigit()):
        raise Refusal("ERR Invalid stream ID specified as stream command argument")
    return int(first), int(second) if second else number


def write_id(each: EntryId) -> bytes:
    """An id as it is sent."""
    return b"%d-%d" % each


def write_entry(each: EntryId, fields: Fields) -> list[object]:
    """An entry as it is sent: its id, then names and values in turn."""
    return [write_id(each), list(fields)]
