"""An installation on streams for tests: run it, look into Redis, write and read entries."""

from __future__ import annotations

import asyncio
from typing import Any

from endwell.app import Node
from endwell.pmo.service import Pmo
from endwell.redis_client import RedisClient
from endwell.streams.intake import StreamIntake
from endwell.streams.orchestrator.service import StreamOrchestratorService
from endwell.streams.protocol import WORKERS_GROUP, Names
from endwell.worker.stream_source import StreamSource
from endwell.worker.worker import Worker
from tests.support.world import World, eventually

SETTINGS: dict[str, object] = {
    "queue.kind": "redis",
    "doorbell.kind": "store",
    "queue.VISIBILITY_TIMEOUT_S": 60.0,
    "queue.HEARTBEAT_INTERVAL_S": 0.2,
    "queue.RECLAIM_INTERVAL_S": 0.2,
    "pmo.watchdog_interval_seconds": 0.1,
    "retry.base_seconds": 0.05,
}


class Streamed:
    """A world whose turns travel over streams."""

    def __init__(self, world: World, redis_url: str) -> None:
        self.world = world
        self.app = world.app
        self.names = Names.for_namespace("", world.namespace)
        self.redis = RedisClient(redis_url)

    async def supervised(self, node: Node | None = None) -> Pmo:
        """A PMO that runs beside the test."""
        pmo = await self.world.supervisor(node)
        run = asyncio.get_running_loop().create_task(pmo.run())

        async def stop() -> None:
            pmo.stop()
            await run

        self.world._closing.append(stop)
        return pmo

    async def orchestrator(self) -> StreamOrchestratorService:
        """An orchestrator that leads, and whose loops do not run."""
        pmo = self.world.node.pmo()
        streams = pmo.streams
        assert streams is not None
        await streams.set_up()
        assert await streams.is_leading()
        self.world._closing.append(streams.close)
        return streams

    async def put(self, **fields: object) -> str:
        """Add an entry to the task stream, as any client can."""
        return await self.add(self.names.task, **fields)

    async def add(self, stream: str, **fields: Any) -> str:
        words = [part for pair in fields.items() for part in pair]
        return str((await self.redis.ask("XADD", stream, "*", *words)).decode())

    async def entries(self, stream: str) -> list[tuple[str, dict[str, str]]]:
        found = await self.redis.ask("XRANGE", stream, "-", "+")
        return [
            (
                message_id.decode(),
                {raw[n].decode(): raw[n + 1].decode(errors="replace") for n in range(0, len(raw), 2)},
            )
            for message_id, raw in found
        ]

    async def letters(self) -> list[dict[str, str]]:
        return [fields for _, fields in await self.entries(self.names.dlq)]

    async def pending(self) -> list[tuple[str, str, int]]:
        """Message, consumer and deliveries of what is pending."""
        rows = await self.redis.ask("XPENDING", self.names.task, WORKERS_GROUP, "-", "+", 100)
        return [(row[0].decode(), row[1].decode(), int(row[3])) for row in rows]

    async def nothing_pending(self) -> None:
        async def is_empty() -> bool:
            return not await self.pending() and not await self.entries(self.names.task)

        await eventually(is_empty, "nothing is pending and the stream is empty")

    async def read(self, consumer: str, count: int = 10) -> list[tuple[str, dict[str, str]]]:
        """Read as a worker would."""
        words = ("XREADGROUP", "GROUP", WORKERS_GROUP, consumer, "COUNT", count)
        found = await self.redis.ask(*words, "STREAMS", self.names.task, ">")
        return [
            (each.decode(), {raw[n].decode(): raw[n + 1].decode() for n in range(0, len(raw), 2)})
            for _, entries in found or ()
            for each, raw in entries
        ]

    async def grown_old(self, consumer: str, *ids: str, seconds: float = 3600) -> None:
        """As if the consumer had not touched these entries for so long."""
        idle = ("IDLE", int(seconds * 1000), "JUSTID")
        await self.redis.ask("XCLAIM", self.names.task, WORKERS_GROUP, consumer, 0, *ids, *idle)

    async def remove_all(self) -> None:
        """Leave nothing on the server."""
        await self.redis.remove_keys(self.names.prefix)
        await self.redis.close()


def intake_of(worker: Worker) -> StreamIntake:
    """The end of the stream that a worker reads from."""
    source = worker._source
    assert isinstance(source, StreamSource)
    assert isinstance(source._intake, StreamIntake)
    return source._intake
