"""The stream of dead letters: those of tasks, and those of entries that cannot be read.

The store has every dead letter of a task; a hash on the server, the index, says which of them are on the
stream, and where. The dead letter of an unreadable entry has a `message_id` and is on this stream alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from endwell.redis_client import RedisClient, Word
from endwell.streams.entries import CUT_REASONS, is_whole_number
from endwell.streams.pending import entries_by_id
from endwell.streams.protocol import Names

KEPT_LETTERS: Final = 100_000
"""Most dead letters on the stream; the store has all of them."""
PAGE: Final = 100
ALL_THERE: Final = ""
"""A field of the index that names no task: while it exists, the index is complete."""

PUBLISH_LETTER: Final = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return false end
local place = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 2))
redis.call('HSET', KEYS[1], ARGV[1], place)
return place
"""
"""Add a dead letter and record its id in one step: an orchestrator that was frozen may wake up at any time
and must not add a second one."""


class UnreadableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An unreadable entry, as its dead letter shows it; `id` is the id of the dead letter."""

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
        """Whether its payload is complete."""
        return self.reason not in CUT_REASONS and bool(self.payload)


class DeadLetterStream:
    """The dead letters of one installation."""

    def __init__(self, redis: RedisClient, names: Names) -> None:
        self._redis = redis
        self._names = names

    async def last_look(self) -> int:
        """The store's time of the last look for changed dead letters; 0 if all must be compared again.

        That is so when the stream or its index was lost. The index is then made again from the stream.
        """
        names = self._names
        looks: list[tuple[Word, ...]] = [("XLEN", names.dlq), ("HLEN", names.dead_letters)]
        looks += [("HMGET", names.dead_letters, ALL_THERE), ("GET", names.dead_letters_cursor)]
        length, indexed, (all_there,), since = await self._redis.ask_all(looks)
        if all_there is None or length < min(indexed - 1, KEPT_LETTERS):
            await self._index_again()
            return 0
        return int(since) if since is not None and is_whole_number(since.decode(errors="replace")) else 0

    async def _index_again(self) -> None:
        names = self._names
        commands: list[tuple[Word, ...]] = [("DEL", names.dead_letters, names.dead_letters_cursor)]
        for task_id, letter_id in (await self._ids_by_task()).items():
            commands.append(("HSET", names.dead_letters, task_id, letter_id))
        commands.append(("HSET", names.dead_letters, ALL_THERE, ""))
        await self._redis.ask_all(commands, atomic=True)

    async def record_look(self, at: int) -> None:
        """Record the store's time of a look that is complete."""
        await self._redis.ask("SET", self._names.dead_letters_cursor, at)

    async def compare_all_again(self) -> None:
        """Forget when dead letters were last looked at: the store is another one now."""
        await self._redis.ask("DEL", self._names.dead_letters_cursor)

    async def ids_of(self, task_ids: Sequence[str]) -> list[bytes | None] | None:
        """Where the dead letters of these tasks are, in their order; None if the index was lost."""
        all_there, *ids = await self._redis.ask("HMGET", self._names.dead_letters, ALL_THERE, *task_ids)
        return None if all_there is None else ids

    async def publish(self, task_id: str, entry: Sequence[Word]) -> bool:
        """Add the dead letter of a task; False if the task has one on the stream."""
        keys = (self._names.dead_letters, self._names.dlq)
        return await self._redis.ask("EVAL", PUBLISH_LETTER, len(keys), *keys, task_id, *entry) is not None

    async def remove(self, task_id: str, letter_id: str) -> None:
        """Remove the dead letter of a task, which was closed."""
        deletion = ("XDEL", self._names.dlq, letter_id)
        unmarking = ("HDEL", self._names.dead_letters, task_id)
        await self._redis.ask_all([deletion, unmarking], atomic=True)

    async def _ids_by_task(self) -> dict[bytes, bytes]:
        """Find the dead letters of tasks on the stream itself."""
        found: dict[bytes, bytes] = {}
        for letter_id, raw in await self._redis.ask("XRANGE", self._names.dlq, "-", "+"):
            fields = dict(zip(raw[::2], raw[1::2], strict=True))
            if not fields.get(b"message_id"):
                found[fields.get(b"task_id", b"")] = letter_id
        return found

    async def trim(self) -> None:
        """Keep the newest dead letters only."""
        await self._redis.ask("XTRIM", self._names.dlq, "MAXLEN", "~", KEPT_LETTERS)

    async def unreadable_count(self) -> int:
        """How many entries are on the stream that are no dead letter of a task; the index has all others."""
        names = self._names
        looks = (("XLEN", names.dlq), ("HLEN", names.dead_letters), ("HMGET", names.dead_letters, ALL_THERE))
        length, indexed, (all_there,) = await self._redis.ask_all(looks)
        return max(0, int(length) - (int(indexed) - (all_there is not None)))

    async def newest_unreadable(self, limit: int, fingerprint: str | None = None) -> list[UnreadableEntry]:
        """The newest unreadable entries first, of one fingerprint or of all."""
        found: list[UnreadableEntry] = []
        if limit <= 0 or not await self.unreadable_count():
            return found
        async for each in self._unreadable_backwards():
            if fingerprint in (None, each.fingerprint):
                found.append(each)
            if len(found) == limit:
                break
        return found

    async def _unreadable_backwards(self) -> AsyncIterator[UnreadableEntry]:
        last = "+"
        while True:
            page = await self._redis.ask("XREVRANGE", self._names.dlq, last, "-", "COUNT", PAGE)
            letters = entries_by_id(page)
            for letter_id, raw in letters.items():
                if letter_id != last and (entry := _read_unreadable(letter_id, raw or ())):
                    yield entry
            if len(letters) < PAGE:
                return
            last = next(reversed(letters))

    async def find_unreadable(self, letter_id: str) -> UnreadableEntry | None:
        """The unreadable entry whose dead letter has this id."""
        found = entries_by_id(await self._redis.ask("XRANGE", self._names.dlq, letter_id, letter_id))
        return _read_unreadable(letter_id, found[letter_id] or ()) if letter_id in found else None

    async def remove_unreadable(self, letter_id: str) -> bool:
        """Remove the dead letter of an unreadable entry; whether it was there."""
        return bool(await self._redis.ask("XDEL", self._names.dlq, letter_id))


def _read_unreadable(letter_id: str, raw: Sequence[bytes]) -> UnreadableEntry | None:
    """None for the dead letter of a task."""
    texts = [part.decode(errors="replace") for part in raw]
    fields = dict(zip(texts[::2], texts[1::2], strict=False))
    if not fields.get("message_id"):
        return None
    shown = {name: fields.get(name, "") for name in UnreadableEntry.__struct_fields__ if name != "id"}
    return UnreadableEntry(id=letter_id, **shown)
