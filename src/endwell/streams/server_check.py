"""How the server and its streams are: for whoever is to say what is not in order. Only looks."""

from __future__ import annotations

from typing import Final

import msgspec

from endwell.redis_client import RedisClient, Refusal
from endwell.streams.pending import PendingEntries
from endwell.streams.protocol import ALL_THERE, WORKERS_GROUP, Names

KEEPS_STREAMS: Final = ("noeviction", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl")
"""How a server may make room without dropping a stream, which never expires."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """`left_ms`: for how long entries that are overdue have been left alone, by id."""

    has_groups: bool
    lengths: dict[str, int]
    left_ms: dict[str, int]
    unreadable: int


async def condition(connection: RedisClient, names: Names, idle_ms: int) -> Condition:
    """The streams as they are now; overdue is what nobody has touched for so long."""
    left: dict[str, int] = {}
    has_groups = True
    try:
        left = await PendingEntries(connection, names.task, WORKERS_GROUP).overdue(idle_ms)
    except Refusal as refusal:
        if refusal.code != "NOGROUP":
            raise
        has_groups = False
    return Condition(
        has_groups=has_groups,
        lengths=await lengths(connection, names),
        left_ms=left,
        unreadable=await unreadable_count(connection, names),
    )


async def lengths(connection: RedisClient, names: Names) -> dict[str, int]:
    """How many entries each stream has."""
    streams = (names.task, names.result, names.dlq)
    counts = await connection.ask_all([("XLEN", stream) for stream in streams])
    return dict(zip(streams, map(int, counts), strict=True))


async def unreadable_count(connection: RedisClient, names: Names) -> int:
    """Dead letters that stand for an entry and not for a task: all others are in the index."""
    looks = (("XLEN", names.dlq), ("HLEN", names.letters), ("HMGET", names.letters, ALL_THERE))
    on_stream, marks, (all_there,) = await connection.ask_all(looks)
    of_tasks = int(marks) - (all_there is not None)
    return max(0, int(on_stream) - of_tasks)


async def eviction_policy(connection: RedisClient) -> str | None:
    """How the server makes room when its memory is full; None where it does not tell."""
    return await _setting(connection, "maxmemory-policy")


async def is_persistent(connection: RedisClient) -> bool | None:
    """Whether the server keeps anything over a restart; None where it does not tell."""
    appends, saves = await _setting(connection, "appendonly"), await _setting(connection, "save")
    return None if appends is None or saves is None else appends == "yes" or bool(saves)


async def _setting(connection: RedisClient, name: str) -> str | None:
    try:
        answer = await connection.ask("CONFIG", "GET", name)
    except Refusal:
        return None
    return str(answer[1].decode()) if answer else None
