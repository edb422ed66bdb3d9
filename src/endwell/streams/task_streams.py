"""The streams of one installation: every Redis command that either end sends, by what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from endwell.redis_client import RedisClient, Refusal, Word
from endwell.streams.consumer_group import ConsumerGroup
from endwell.streams.dead_letter_stream import DeadLetterStream
from endwell.streams.entries import (
    Delivery,
    Malformed,
    OfferEntry,
    malformed_letter,
    passed_entry,
    read_task,
    task_entry,
)
from endwell.streams.foreign_keys import GrantKeys, Registrations
from endwell.streams.protocol import ORCHESTRATOR_GROUP, RESULT, WORKERS_GROUP, Names

Lead = Literal["new", "kept", "other"]
"""Whether this orchestrator leads. `new`: none did just now; a former leader was forgotten by the server."""
KEEPS_STREAMS: Final = ("noeviction", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl")
"""How a server may free memory without dropping a stream, which never expires."""

PUBLISH_RESULTS: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local at = 3
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  redis.call('XADD', KEYS[2], '*', unpack(ARGV, at + 1, last))
  at = last + 1
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""
"""Add results and move the cursor in one step: an orchestrator that was frozen while another one published
may wake up at any time and must not publish again."""


class StreamsCondition(msgspec.Struct, frozen=True, kw_only=True):
    """How the streams are; `idle_ms`: how long overdue entries have been left alone, by id."""

    has_groups: bool
    lengths: dict[str, int]
    idle_ms: dict[str, int]
    unreadable: int


class TaskStreams:
    """The streams and keys that carry the turns of one namespace."""

    def __init__(self, redis: RedisClient, names: Names) -> None:
        self.redis = redis
        self.names = names
        self.tasks = ConsumerGroup(redis, names.task, WORKERS_GROUP)
        self.reports = ConsumerGroup(redis, names.result, ORCHESTRATOR_GROUP)
        self.dead_letters = DeadLetterStream(redis, names)
        self.registrations = Registrations(redis, names)
        self.grants = GrantKeys(redis, names)

    async def create_groups(self) -> bool:
        """Create the groups that are missing; whether one was, because the server is new or lost its data."""
        return any([await self.tasks.create(), await self.reports.create()])

    async def publish_offers(self, offers: Sequence[OfferEntry]) -> None:
        """Add offers in one step: a worker that waits gets all of them, and not the first alone."""
        if offers:
            commands = [("XADD", self.names.task, "*", *task_entry(offer)) for offer in offers]
            await self.redis.ask_all(commands, atomic=len(commands) > 1)

    async def read_deliveries(self, ids: Sequence[str]) -> dict[str, Delivery]:
        """The usable entries of the task stream with these ids, without touching them."""
        entries = await self.tasks.find_entries(ids)
        read = (read_task(message_id, raw) for message_id, raw in entries.items())
        return {each.message_id: each for each in read if isinstance(each, Delivery)}

    def bury_commands(self, bad: Malformed, failed_at: str) -> list[tuple[Word, ...]]:
        """The commands that make a malformed entry a dead letter; to be sent in one step.

        The entry is then neither lost nor read for ever.
        """
        group = self.reports if bad.stream == RESULT else self.tasks
        letter = ("XADD", self.names.dlq, "*", *malformed_letter(bad, failed_at))
        return [letter, *group.remove_commands((bad.message_id,))]

    async def bury_entries(self, bad: Sequence[Malformed], failed_at: str) -> None:
        """Make malformed entries dead letters."""
        for each in bad:
            await self.redis.ask_all(self.bury_commands(each, failed_at), atomic=True)

    def pass_on_commands(self, delivery: Delivery, consumer: str) -> list[tuple[Word, ...]]:
        """The commands by which a worker passes a delivery on; to be sent in one step.

        The entry stays on the stream until the orchestrator has looked at it.
        """
        report = ("XADD", self.names.result, "*", *passed_entry(delivery, consumer))
        return [report, self.tasks.acknowledge_command((delivery.message_id,))]

    async def take_lead(self, consumer: str, seconds: float) -> Lead:
        """Take or keep the lead. With two leaders, some offers would be on the stream twice: no harm."""
        milliseconds = int(seconds * 1000)
        taking = ("SET", self.names.leader, consumer, "NX", "PX", milliseconds)
        is_taken, leader = await self.redis.ask_all([taking, ("GET", self.names.leader)])
        if is_taken:
            return "new"
        if leader != consumer.encode():
            return "other"
        await self.redis.ask("PEXPIRE", self.names.leader, milliseconds)
        return "kept"

    async def give_up_lead(self, consumer: str) -> None:
        """Let another orchestrator lead at once."""
        if await self.redis.ask("GET", self.names.leader) == consumer.encode():
            await self.redis.ask("DEL", self.names.leader)

    async def publish_settings(self, settings: Mapping[str, Word]) -> None:
        """Write the times that a foreign worker must know."""
        words = [word for field in settings.items() for word in field]
        await self.redis.ask("HSET", self.names.settings, *words)

    async def results_cursor(self) -> bytes | None:
        """The place in the log up to which results were published."""
        cursor: bytes | None = await self.redis.ask("GET", self.names.results_cursor)
        return cursor

    async def set_results_cursor(self, cursor: str, *, only_if_missing: bool) -> None:
        """Begin to publish results from another place in the log."""
        condition = ("NX",) if only_if_missing else ()
        await self.redis.ask("SET", self.names.results_cursor, cursor, *condition)

    async def publish_results(self, entries: Sequence[Sequence[Word]], *, after: str, cursor: str) -> bool:
        """Add results and move the cursor; False if another orchestrator has moved it."""
        words = [word for entry in entries for word in (len(entry), *entry)]
        keys = (self.names.results_cursor, self.names.result)
        return bool(await self.redis.ask("EVAL", PUBLISH_RESULTS, len(keys), *keys, after, cursor, *words))

    async def trim_all(self, *, results_kept: int) -> None:
        """Drop entries that are no longer needed, but keep the newest published results."""
        await self.tasks.trim()
        if results_kept:
            await self.reports.trim_to(results_kept)
        else:
            await self.reports.trim()
        await self.dead_letters.trim()

    async def stream_lengths(self) -> dict[str, int]:
        """How many entries each stream has."""
        streams = (self.names.task, self.names.result, self.names.dlq)
        counts = await self.redis.ask_all([("XLEN", stream) for stream in streams])
        return dict(zip(streams, map(int, counts), strict=True))

    async def examine(self, idle_ms: int) -> StreamsCondition:
        """Look at the streams; entries that no consumer touched for `idle_ms` are overdue."""
        overdue: dict[str, int] = {}
        has_groups = True
        try:
            overdue = await self.tasks.pending.find_overdue(idle_ms)
        except Refusal as refusal:
            if refusal.code != "NOGROUP":
                raise
            has_groups = False
        return StreamsCondition(
            has_groups=has_groups,
            lengths=await self.stream_lengths(),
            idle_ms=overdue,
            unreadable=await self.dead_letters.unreadable_count(),
        )


async def eviction_policy(redis: RedisClient) -> str | None:
    """How the server frees memory when it is full; None if it does not tell."""
    return await _server_setting(redis, "maxmemory-policy")


async def is_persistent(redis: RedisClient) -> bool | None:
    """Whether the server keeps anything over a restart; None if it does not tell."""
    append_only, save = await _server_setting(redis, "appendonly"), await _server_setting(redis, "save")
    return None if append_only is None or save is None else append_only == "yes" or bool(save)


async def _server_setting(redis: RedisClient, name: str) -> str | None:
    try:
        answer = await redis.ask("CONFIG", "GET", name)
    except Refusal:
        return None
    return str(answer[1].decode()) if answer else None
