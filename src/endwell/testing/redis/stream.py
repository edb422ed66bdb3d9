"""One stream: entries in the order of their ids, and groups that remember what they gave to whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from endwell.redis_client import Refusal

Id = tuple[int, int]
Fields = list[bytes]
Shown = list[object]
"""An entry as it is sent: its id, its names and values in turn."""

FIRST: Final[Id] = (0, 0)
LAST: Final[Id] = (2**64 - 1, 2**64 - 1)


@dataclass
class Given:
    """A pending entry: who has it, since when, and how often it was given."""

    consumer: bytes
    at_ms: int
    times: int


@dataclass
class StreamGroup:
    """What was delivered last, what is pending, and when each consumer was heard of."""

    last: Id
    pending: dict[Id, Given] = field(default_factory=dict)
    consumers: dict[bytes, int] = field(default_factory=dict)

    def listed(self) -> list[tuple[Id, Given]]:
        """Pending entries by id."""
        return sorted(self.pending.items(), key=lambda item: item[0])

    def held_by(self, consumer: bytes) -> int:
        """How many entries one consumer has."""
        return sum(given.consumer == consumer for given in self.pending.values())


@dataclass
class Stream:
    """`add`, `between` and `remove` are about entries; groups are looked after by the server."""

    entries: dict[Id, Fields] = field(default_factory=dict)
    groups: dict[bytes, StreamGroup] = field(default_factory=dict)
    last: Id = FIRST

    def add(self, now_ms: int, fields: Fields) -> Id:
        """Ids rise, also when the clock does not."""
        newest, number = self.last
        self.last = (now_ms, 0) if now_ms > newest else (newest, number + 1)
        self.entries[self.last] = fields
        return self.last

    def between(self, first: Id, last: Id) -> Iterator[tuple[Id, Fields]]:
        """Entries by id, both ends included."""
        return ((each, fields) for each, fields in self.entries.items() if first <= each <= last)

    def after(self, last: Id, limit: int) -> list[tuple[Id, Fields]]:
        """The next so many."""
        if not self.entries or next(reversed(self.entries)) <= last:
            return []
        return [(each, fields) for each, fields in self.entries.items() if each > last][:limit]

    def remove(self, ids: Iterable[Id]) -> int:
        """How many of them were there. Pending they stay."""
        return sum(self.entries.pop(each, None) is not None for each in ids)


def parsed(word: bytes, *, number: int = 0) -> Id:
    """An id as it was sent; `number` is what stands for a missing second part."""
    if word in (b"-", b"+"):
        return FIRST if word == b"-" else LAST
    first, _, second = word.partition(b"-")
    if not first.isdigit() or (second and not second.isdigit()):
        raise Refusal("ERR Invalid stream ID specified as stream command argument")
    return int(first), int(second) if second else number


def written(each: Id) -> bytes:
    """An id as it is sent."""
    return b"%d-%d" % each


def shown(each: Id, fields: Fields) -> Shown:
    """An entry as it is sent."""
    return [written(each), list(fields)]
