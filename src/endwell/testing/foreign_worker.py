"""A foreign worker: it knows only the server and docs/protocol.md, and takes nothing from the product.

The names of keys and fields stand here once more, as the page has them: who reads the page writes this.
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
SAY_SECONDS: Final = 20.0
LAPSE_SECONDS: Final = 60
BLOCK_MS: Final = 10_000
GRANT_LOOKS: Final = 20
LOOK_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 3.0

Tool = Callable[[Any], Awaitable[Any]]


class ForeignWorker:
    """`run()` works until the process ends."""

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
        self._line = connect()
        self._runtime = runtime
        self.name = name
        self._tools = tools
        self._slots = slots
        self._heartbeat_seconds = heartbeat_seconds
        self.held: set[str] = set()
        self._free = asyncio.Event()

    async def run(self) -> None:
        """Say what is served, and read."""
        self._runtime.spawn(self._say_on(), f"{self.name}-says")
        while True:
            try:
                await self._read_once()
            except Refusal:
                await self._found()
            except (Unreachable, TimeoutError):
                await self._runtime.sleep(PAUSE_SECONDS)

    async def _say_on(self) -> None:
        said = json.dumps({"tools": list(self._tools), "slots": self._slots})
        while True:
            with suppress(Unreachable, Refusal):
                await self._line.ask("SADD", "workers", self.name)
                await self._line.ask("SET", f"worker:{self.name}", said, "EX", LAPSE_SECONDS)
            await self._runtime.sleep(SAY_SECONDS)

    async def _found(self) -> None:
        with suppress(Unreachable, Refusal):
            await self._line.ask("XGROUP", "CREATE", TASKS, GROUP, "0", "MKSTREAM")
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
                self._runtime.spawn(self._see_to(message_id.decode(), raw), f"{self.name}-works")

    async def _see_to(self, message_id: str, raw: Sequence[bytes]) -> None:
        try:
            entry = {raw[n].decode(): raw[n + 1].decode() for n in range(0, len(raw), 2)}
            await self._work(message_id, entry)
        except (Unreachable, Refusal, UnicodeDecodeError, KeyError):
            pass  # the entry is left alone, and others see to it
        finally:
            self.held.discard(message_id)
            self._free.set()

    async def _work(self, message_id: str, entry: dict[str, str]) -> None:
        said = {key: entry[key] for key in ("task_id", "turn", "epoch")}
        said |= {"worker_id": self.name, "message_id": message_id}
        tool = self._tools.get(entry["tool_name"])
        if tool is None:
            await self._add({**said, "status": "passed", "tool_name": entry["tool_name"]})
        else:
            attempt = f"{self.name}:{await self._add({**said, 'status': 'claimed'})}"
            grant = f"grant:{entry['turn']}:{entry['epoch']}"
            answer = await self._granted(grant)
            if answer is None:
                return
            if answer == attempt:
                ending = await self._done(tool, entry, message_id, grant, attempt)
                await self._add({**said, **ending, "attempt": attempt})
        await self._line.ask("XACK", TASKS, GROUP, message_id)

    async def _add(self, fields: Mapping[str, str]) -> str:
        words = [part for pair in fields.items() for part in pair]
        return str((await self._line.ask("XADD", RESULTS, "*", *words)).decode())

    async def _granted(self, grant: str) -> str | None:
        for _ in range(GRANT_LOOKS):
            answer = await self._line.ask("GET", grant)
            if answer is not None:
                return str(answer.decode())
            await self._runtime.sleep(LOOK_SECONDS)
        return None

    async def _done(
        self, tool: Tool, entry: Mapping[str, str], message_id: str, grant: str, attempt: str
    ) -> dict[str, str]:
        """How it ended; `returned` when the turn was taken away meanwhile."""
        work = self._runtime.spawn(self._outcome(tool, json.loads(entry["payload"])), self.name)
        while not work.done():
            await asyncio.wait([work], timeout=self._heartbeat_seconds)
            if work.done():
                break
            with suppress(Refusal, Unreachable):  # the attempt decides whether its result counts
                await self._line.ask("XCLAIM", TASKS, GROUP, self.name, 0, message_id, "JUSTID")
                if await self._line.ask("GET", grant) != attempt.encode():
                    work.cancel()
                    return {"status": "returned"}
        return work.result()

    async def _outcome(self, tool: Tool, payload: Any) -> dict[str, str]:
        try:
            return {"status": "succeeded", "output": json.dumps(await tool(payload))}
        except ValueError as error:
            return {"status": "failed", "error": json.dumps({"message": str(error)})}
