"""The streams' groups, made where they are missing: at the start, and when a server has forgotten them."""

from __future__ import annotations

from endwell.redis_client import RedisClient, Refusal
from endwell.streams.protocol import ORCHESTRATOR_GROUP, WORKERS_GROUP, Names


async def make_groups(connection: RedisClient, names: Names) -> bool:
    """Whether one was missing. From the first entry on: what was put before it came is not passed over."""
    made = False
    for stream, group in ((names.task, WORKERS_GROUP), (names.result, ORCHESTRATOR_GROUP)):
        try:
            await connection.ask("XGROUP", "CREATE", stream, group, "0", "MKSTREAM")
            made = True
        except Refusal as refusal:
            if refusal.code != "BUSYGROUP":
                raise
    return made
