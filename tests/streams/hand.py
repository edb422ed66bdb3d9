"""A foreign worker that the test moves by hand."""

from __future__ import annotations

from typing import Any

from endwell import AsyncHandle
from endwell.streams.entries import ReportEntry, read_report
from endwell.streams.orchestrator.service import StreamOrchestratorService
from tests.streams.streamed import Streamed


class Hand:
    """A foreign worker moved by the test, one step at a time."""

    def __init__(self, streamed: Streamed, streams: StreamOrchestratorService, name: str = "hand-1") -> None:
        self.streamed = streamed
        self.streams = streams
        self.name = name
        self.message_id = ""
        self.task: dict[str, str] = {}

    async def offered(self, payload: Any = 1, **options: Any) -> AsyncHandle:
        """Serve `press`, and read a task that was submitted for it."""
        handle = await self.published(payload, **options)
        await self.read()
        return handle

    async def published(self, payload: Any = 1, **options: Any) -> AsyncHandle:
        """Serve `press`, and have a task for it published."""
        await self.serves()
        await self.streams.foreign.renew_leases()
        handle = await self.streamed.world.submitted("press", payload, **options)
        assert await self.streams.publisher.publish_ready() == 1
        return handle

    async def serves(self) -> None:
        names = self.streamed.names
        await self.streamed.redis.ask("SADD", names.workers, self.name)
        await self.streamed.redis.ask("SET", names.worker_key(self.name), '{"tools":["press"]}', "EX", 60)

    async def read(self) -> None:
        ((self.message_id, self.task),) = await self.streamed.read(self.name)

    async def says(self, status: str, **more: object) -> str:
        said = {key: self.task[key] for key in ("task_id", "turn", "epoch")}
        about = {**said, "worker_id": self.name, "message_id": self.message_id, "status": status, **more}
        return await self.streamed.add(self.streamed.names.result, **about)

    async def asks(self) -> tuple[str, str]:
        """Ask for the turn: its attempt, and what the grant says."""
        attempt = f"{self.name}:{await self.says('claimed')}"
        await self.heard()
        return attempt, await self.grant()

    async def grant(self) -> str:
        key = self.streamed.names.grant_key(self.task["turn"], int(self.task["epoch"]))
        return ((await self.streamed.redis.ask("GET", key)) or b"").decode()

    async def unacknowledged_reports(self) -> list[ReportEntry]:
        """What the orchestrator reads now, without handling it."""
        read = [read_report(*entry) for entry in await self.streams._reader.read(10)]
        return [each for each in read if isinstance(each, ReportEntry)]

    async def heard(self) -> None:
        await self.streams._read_reports_once()
