"""One stream as one consumer group sees it: reading, acknowledging, trimming.

Redis commands are spelled here and in the modules beside it (`pending`, `dead_letter_stream`, `foreign_keys`,
`task_streams`), and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from endwell.redis_client import Connect, RedisClient, Refusal, Unreachable, Word
from endwell.runtime.base import Runtime
from endwell.streams.entries import RawFields
from endwell.streams.pending import PendingEntries, entries_by_id

ANSWER_SECONDS = 5.0
"""How much later than a blocking read should end a server may answer before it counts as lost."""
PAGE = 256


class ConsumerGroup:
    """A stream and a group of its readers."""

    def __init__(self, redis: RedisClient, stream: str, name: str) -> None:
        self._redis = redis
        self.stream = stream
        self.name = name
        self.pending = PendingEntries(redis, stream, name)
        self._knows_minid = True

    async def create(self) -> bool:
        """Create it, unless it exists. It begins with the stream's first entry, so that none is missed."""
        try:
            await self._redis.ask("XGROUP", "CREATE", self.stream, self.name, "0", "MKSTREAM")
        except Refusal as refusal:
            if refusal.code != "BUSYGROUP":
                raise
            return False
        return True

    def acknowledge_command(self, ids: Sequence[str]) -> tuple[Word, ...]:
        """The command that acknowledges entries and leaves them on the stream."""
        return ("XACK", self.stream, self.name, *ids)

    def remove_commands(self, ids: Sequence[str]) -> list[tuple[Word, ...]]:
        """The commands that acknowledge entries and delete them."""
        return [self.acknowledge_command(ids), ("XDEL", self.stream, *ids)]

    async def acknowledge(self, ids: Sequence[str]) -> None:
        """Acknowledge entries that stay on the stream for other groups."""
        if ids:
            await self._redis.ask(*self.acknowledge_command(ids))

    async def remove(self, ids: Sequence[str]) -> None:
        """Acknowledge and delete entries."""
        if ids:
            await self._redis.ask_all(self.remove_commands(ids))

    async def claim(self, consumer: bytes | str, ids: Sequence[str]) -> None:
        """Give pending entries to a consumer, as if it had just touched them.

        That is the heartbeat of entries: it adds none, and counts as no delivery.
        """
        await self._redis.ask("XCLAIM", self.stream, self.name, consumer, 0, *ids, "JUSTID")

    async def find_entries(self, ids: Sequence[str]) -> dict[str, RawFields]:
        """The entries of these ids that exist, without touching them."""
        looks = [("XRANGE", self.stream, each, each) for each in ids]
        found: dict[str, RawFields] = {}
        for answer in await self._redis.ask_all(looks) if looks else ():
            found |= entries_by_id(answer)
        return found

    async def list_consumers(self) -> list[tuple[bytes, int, int]]:
        """Name, pending entries and idle milliseconds of each consumer that the server knows."""
        rows = map(_as_dict, await self._redis.ask("XINFO", "CONSUMERS", self.stream, self.name))
        return [(row["name"], int(row["pending"]), int(row["idle"])) for row in rows]

    async def delete_consumer(self, name: bytes) -> None:
        """Make the server forget a consumer that has nothing pending."""
        await self._redis.ask("XGROUP", "DELCONSUMER", self.stream, self.name, name)

    async def trim(self) -> None:
        """Drop the entries that every group of the stream has acknowledged."""
        if self._knows_minid and (least := await self._least_needed()) is not None:
            await self._trim_before(least)

    async def trim_to(self, length: int) -> None:
        """Drop the oldest entries beyond `length`, but none that this group has yet to acknowledge."""
        excess = int(await self._redis.ask("XLEN", self.stream)) - length
        least = await self._least_needed(only_own=True)
        while excess > 0 and least is not None and self._knows_minid:
            page = await self._redis.ask("XRANGE", self.stream, "-", "+", "COUNT", min(excess, PAGE))
            oldest = list(entries_by_id(page))
            if not oldest:
                return
            await self._trim_before(min(_next_id(_id_of(oldest[-1])), least))
            excess -= len(oldest)

    async def _trim_before(self, least: tuple[int, int]) -> None:
        """Servers before Redis 6.2 lack MINID; there, only entries that are deleted one by one go."""
        try:
            await self._redis.ask("XTRIM", self.stream, "MINID", "-".join(map(str, least)))
        except Refusal as refusal:
            if refusal.code != "ERR":
                raise
            self._knows_minid = False

    async def _least_needed(self, *, only_own: bool = False) -> tuple[int, int] | None:
        """The first entry that some group has pending, or has not read yet."""
        needed = []
        for group in map(_as_dict, await self._redis.ask("XINFO", "GROUPS", self.stream)):
            if only_own and group["name"] != self.name.encode():
                continue
            summary = await self._redis.ask("XPENDING", self.stream, group["name"])
            if summary[0]:
                needed.append(_id_of(summary[1].decode()))
            else:
                needed.append(_next_id(_id_of(group["last-delivered-id"].decode())))
        return min(needed, default=None)


class GroupReader:
    """Reads new entries for one consumer, on a client of its own that waits at the server."""

    def __init__(
        self, connect: Connect, runtime: Runtime, group: ConsumerGroup, consumer: str, block_seconds: float
    ) -> None:
        self._connect = connect
        self._runtime = runtime
        self._group = group
        self._consumer = consumer
        self._block_seconds = block_seconds
        self._redis = connect(blocking=True)

    async def read(self, limit: int) -> list[tuple[str, RawFields]]:
        """The next entries; none if there were none for `block_seconds`."""
        words = ("XREADGROUP", "GROUP", self._group.name, self._consumer, "COUNT", limit)
        block = ("BLOCK", int(self._block_seconds * 1000), "STREAMS", self._group.stream, ">")
        try:
            async with self._runtime.timeout(self._block_seconds + ANSWER_SECONDS):
                found = await self._redis.ask(*words, *block)
        except TimeoutError:
            await self._redis.close()
            self._redis = self._connect(blocking=True)
            raise Unreachable("the server does not answer") from None
        return [(message_id.decode(), raw) for _, entries in found or () for message_id, raw in entries]

    async def close(self) -> None:
        """Close its client."""
        await self._redis.close()


def _as_dict(row: Sequence[Any]) -> Mapping[str, Any]:
    """A flat list of names and values, as the server sends a map."""
    return {row[n].decode(): row[n + 1] for n in range(0, len(row), 2)}


def _id_of(message_id: str) -> tuple[int, int]:
    first, _, second = message_id.partition("-")
    return int(first), int(second or 0)


def _next_id(message_id: tuple[int, int]) -> tuple[int, int]:
    return message_id[0], message_id[1] + 1
