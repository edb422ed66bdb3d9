"""A foreign worker that knows only the server and docs/protocol.md, and imports nothing of the protocol.

It has its own names of keys and fields, as the page gives them: it is what a reader of the page would write.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from endwell.redis_client import ANSWER_SECONDS, Connect, Refusal, Unreachable
from endwell.runtime.base import Runtime

TASKS: Final = "stream:task"
RESULTS: Final = "stream:result"
GROUP: Final = "cg:workers"
REGISTER_SECONDS: Final = 20.0
EXPIRE_SECONDS: Final = 60
BLOCK_MS: Final = 10_000
GRANT_TRIES: Final = 20
GRANT_TRY_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 3.0

Tool = Callable[[Any], Awaitable[Any]]


class ForeignWorker:
    """Executes turns of its tools until the process ends."""

    def __init__(
        self,
        connect: Connect,
        runtime: Runtime,
        name: str,
        tools: Mapping[str, Tool],
        *,
        slots: int = 2,
        heartbeat_seconds: float,
    ) -> None:
        self._reading = connect(blocking=True)
        self._redis = connect()
        self._runtime = runtime
        self.name = name
        self._tools = tools
        self._slots = slots
        self._heartbeat_seconds = heartbeat_seconds
        self.held: set[str] = set()
        self._free = asyncio.Event()

    async def run(self) -> None:
        """Register, and read offers for ever."""
        self._runtime.spawn(self._keep_registered(), f"{self.name}-registers")
        while True:
            try:
                await self._read_once()
            except Refusal:
                await self._create_group()
            except (Unreachable, TimeoutError):
                await self._runtime.sleep(PAUSE_SECONDS)

    async def _keep_registered(self) -> None:
        registration = json.dumps({"tools": list(self._tools), "slots": self._slots})
        while True:
            with suppress(Unreachable, Refusal):
                await self._redis.ask("SADD", "workers", self.name)
                await self._redis.ask("SET", f"worker:{self.name}", registration, "EX", EXPIRE_SECONDS)
            await self._runtime.sleep(REGISTER_SECONDS)

    async def _create_group(self) -> None:
        with suppress(Unreachable, Refusal):
            await self._redis.ask("XGROUP", "CREATE", TASKS, GROUP, "0", "MKSTREAM")
        await self._runtime.sleep(PAUSE_SECONDS)

    async def _read_once(self) -> None:
        room = self._slots - len(self.held)
        if room <= 0:
            self._free.clear()
            await self._free.wait()
            return
        words = ("XREADGROUP", "GROUP", GROUP, self.name, "COUNT", room, "BLOCK", BLOCK_MS)
        async with self._runtime.timeout(BLOCK_MS / 1000 + ANSWER_SECONDS):
            found = await self._reading.ask(*words, "STREAMS", TASKS, ">")
        for _, entries in found or ():
            for message_id, raw in entries:
                self.held.add(message_id.decode())
                self._runtime.spawn(self._handle(message_id.decode(), raw), f"{self.name}-works")

    async def _handle(self, message_id: str, raw: Sequence[bytes]) -> None:
        try:
            entry = {raw[n].decode(): raw[n + 1].decode() for n in range(0, len(raw), 2)}
            await self._execute(message_id, entry)
        except (Unreachable, Refusal, UnicodeDecodeError, KeyError):
            pass  # the entry is left alone, and will be reclaimed
        finally:
            self.held.discard(message_id)
            self._free.set()

    async def _execute(self, message_id: str, entry: dict[str, str]) -> None:
        said = {key: entry[key] for key in ("task_id", "turn", "epoch")}
        said |= {"worker_id": self.name, "message_id": message_id}
        tool = self._tools.get(entry["tool_name"])
        if tool is None:
            await self._report({**said, "status": "passed", "tool_name": entry["tool_name"]})
        else:
            attempt = f"{self.name}:{await self._report({**said, 'status': 'claimed'})}"
            grant = f"grant:{entry['turn']}:{entry['epoch']}"
            answer = await self._wait_for_grant(grant)
            if answer is None:
                return
            if answer == attempt:
                ending = await self._run_tool(tool, entry, message_id, grant, attempt)
                await self._report({**said, **ending, "attempt": attempt})
        await self._redis.ask("XACK", TASKS, GROUP, message_id)

    async def _report(self, fields: Mapping[str, str]) -> str:
        words = [part for pair in fields.items() for part in pair]
        return str((await self._redis.ask("XADD", RESULTS, "*", *words)).decode())

    async def _wait_for_grant(self, grant: str) -> str | None:
        for _ in range(GRANT_TRIES):
            answer = await self._redis.ask("GET", grant)
            if answer is not None:
                return str(answer.decode())
            await self._runtime.sleep(GRANT_TRY_SECONDS)
        return None

    async def _run_tool(
        self, tool: Tool, entry: Mapping[str, str], message_id: str, grant: str, attempt: str
    ) -> dict[str, str]:
        """The ending to report; `returned` if the turn was taken away."""
        work = self._runtime.spawn(self._call_tool(tool, json.loads(entry["payload"])), self.name)
        while not work.done():
            await asyncio.wait([work], timeout=self._heartbeat_seconds)
            if work.done():
                break
            with suppress(Refusal, Unreachable):  # the attempt decides whether its result counts
                await self._redis.ask("XCLAIM", TASKS, GROUP, self.name, 0, message_id, "JUSTID")
                if await self._redis.ask("GET", grant) != attempt.encode():
                    work.cancel()
                    return {"status": "returned"}
        return work.result()

    async def _call_tool(self, tool: Tool, payload: Any) -> dict[str, str]:
        try:
            return {"status": "succeeded", "output": json.dumps(await tool(payload))}
        except ValueError as error:
            return {"status": "failed", "error": json.dumps({"message": str(error)})}
