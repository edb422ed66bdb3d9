"""The four acceptance criteria of the task queue protocol, each with real processes and a real server."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

from endwell.app import Endwell, Node
from endwell.client import AsyncHandle
from endwell.demo.crew import Crew, CrewMember, clean_environment
from endwell.errors import TaskNotSucceeded
from endwell.model.facts import TaskReclaimed
from endwell.redis_client import RedisClient, Refusal, Unreachable
from endwell.runtime.base import Runtime
from endwell.selftest import agents
from endwell.settings import Settings, mask_url, override
from endwell.streams.protocol import WORKERS_GROUP, Names

PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.05
EXECUTIONS = 4
"""MAX_RETRIES is 3: one execution and three retries."""
SETTINGS: dict[str, object] = {
    "queue.kind": "redis",
    "doorbell.kind": "store",
    "queue.VISIBILITY_TIMEOUT_S": 3.0,
    "queue.HEARTBEAT_INTERVAL_S": 0.5,
    "queue.RECLAIM_INTERVAL_S": 2.0,  # for twice as long, reclaims are left to the orchestrator
    "pmo.watchdog_interval_seconds": 0.5,
    "retry.base_seconds": 0.05,
}


class Bed:
    """A fresh store, a prefix of its own, a PMO and a worker; nothing is left behind."""

    def __init__(self, runtime: Runtime, directory: Path, url: str) -> None:
        self.runtime = runtime
        self._url = url
        self._prefix = f"endwell-selftest-{runtime.ids.new()}:"
        self.names = Names(self._prefix)
        self.sink = directory / "sink"
        values = {**SETTINGS, "redis.url": url, "redis.prefix": self._prefix}
        store = f"sqlite:///{directory / 'selftest.db'}"
        settings = override(Settings(), {**values, "store": store}, source="selftest")
        self._app = Endwell(settings=settings, runtime=runtime)
        env = clean_environment(store, values, {agents.SINK: str(self.sink)})
        self.crew = Crew(runtime, directory, env)
        self.redis = RedisClient(url)
        self.node: Node

    async def find_trouble(self) -> str | None:
        """Why the server cannot be tested; None if it answers."""
        try:
            await self.redis.ask("PING")
        except (Unreachable, Refusal) as error:
            return f"{mask_url(self._url)} does not answer: {error}"
        return None

    async def __aenter__(self) -> Self:
        self.node = await self._app.connect().__aenter__()
        await self.crew.wait_ready([self.crew.start("pmo", "pmo")])
        await self.start_worker("first")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.crew.end()
        await self.node.__aexit__()
        await self.redis.remove_keys(self._prefix)
        await self.redis.close()

    async def start_worker(self, name: str) -> CrewMember:
        """Start a worker process and wait until it is ready."""
        member = self.crew.start(name, "worker", "--app", "endwell.selftest.agents:app", "--name", name)
        await self.crew.wait_ready([member])
        return member

    async def history(self, handle: AsyncHandle) -> list[str]:
        """The types of a task's events."""
        events = await self.node.store.events_of_task(self._app.namespace, handle.id)
        return [event.type for event in events]

    async def count_pending(self) -> int:
        """Count the pending entries."""
        return int((await self.redis.ask("XPENDING", self.names.task, WORKERS_GROUP))[0])

    async def wait_until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until the condition is true; fail the criterion if it never is."""
        limit = self.runtime.clock.monotonic() + PATIENCE_SECONDS
        while not await condition():
            require_that(self.runtime.clock.monotonic() < limit, f"not within {PATIENCE_SECONDS:g} s: {what}")
            await self.runtime.sleep(LOOK_SECONDS)

    async def wait_acknowledged(self) -> None:
        """Wait until no entry is pending."""

        async def is_none() -> bool:
            return await self.count_pending() == 0

        await self.wait_until(is_none, "pending = 0")

    def count_lines(self, text: str) -> int:
        """Count equal lines of the sink."""
        return self.sink.read_text().splitlines().count(text) if self.sink.exists() else 0


def require_that(holds: bool, what: str) -> None:
    """Fail the criterion unless this holds."""
    if not holds:
        raise AssertionError(what)


async def check_success(bed: Bed) -> str:
    """A task is created, claimed, succeeded and acknowledged."""
    handles = await bed.node.client.submit_many("echo", range(10))
    results = [await handle.result(timeout=PATIENCE_SECONDS) for handle in handles]
    require_that(results == list(range(10)), f"the results were {results}")
    wanted = ["task.created", "task.claimed", "task.succeeded"]
    for handle in handles:
        history = [kind for kind in await bed.history(handle) if kind in wanted]
        require_that(history == wanted, f"task {handle.id} went {' -> '.join(history)}")
    await bed.wait_acknowledged()
    return "10 tasks: created -> claimed -> succeeded, pending = 0"


async def check_retries(bed: Bed) -> str:
    """A failing task has MAX_RETRIES retries, then a dead letter; the log has all of it."""
    handle = await bed.node.client.submit("fails")
    with contextlib.suppress(TaskNotSucceeded):
        await handle.result(timeout=PATIENCE_SECONDS)
    history = await bed.history(handle)
    require_that(history.count("task.claimed") == EXECUTIONS, f"{history.count('task.claimed')} executions")
    require_that(history.count("task.retry_scheduled") == EXECUTIONS - 1, "a retry is missing in the log")
    require_that(history[-2:] == ["task.failed", "task.dlq"], f"it ended with {history[-2:]}")

    async def is_told() -> bool:
        entries = await bed.redis.ask("XRANGE", bed.names.dlq, "-", "+")
        return any(handle.id.encode() in fields for _, fields in entries)

    await bed.wait_until(is_told, "the dead letter is on stream:dlq")
    await bed.wait_acknowledged()
    return f"{EXECUTIONS} executions, then failed and dead-lettered"


async def check_restart(bed: Bed) -> str:
    """A worker is killed and another started: the pending task is reclaimed and succeeds."""
    handle = await bed.node.client.submit("held")

    async def is_held() -> bool:
        return bed.count_lines("held") == 1

    await bed.wait_until(is_held, "a worker has begun")
    bed.crew.members["first"].kill()
    require_that(await bed.count_pending() == 1, "the dead worker's entry is not pending")
    await bed.start_worker("second")
    result = await handle.result(timeout=PATIENCE_SECONDS)
    require_that(result == "done", f"the result was {result!r}")
    events = await bed.node.store.events_of_task("default", handle.id)
    reclaims = [event.fact for event in events if isinstance(event.fact, TaskReclaimed)]
    require_that(len(reclaims) == 1, f"{len(reclaims)} reclaims in the log")
    (fact,) = reclaims
    require_that(bool(fact.message_id and fact.new_consumer), "the log does not say which entry, or by whom")
    require_that(
        str(fact.old_consumer).startswith("first-"), f"the log says it was taken from {fact.old_consumer}"
    )
    await bed.wait_acknowledged()
    return f"taken from {fact.old_consumer}, entry {fact.message_id}, then done"


async def check_single_payment(bed: Bed) -> str:
    """The same key is the same task; the same effect key is one effect."""
    client = bed.node.client
    first = await client.submit("pays", "42", key="order-42")
    again = await client.submit("pays", "42", key="order-42")
    require_that(first.id == again.id, "the same key made two tasks")
    other = await client.submit("pays", "42", key="order-42-again")
    for handle in (first, other):
        await handle.result(timeout=PATIENCE_SECONDS)
    require_that(bed.count_lines("paid 42") == 1, f"it was paid {bed.count_lines('paid 42')} times")
    await bed.wait_acknowledged()
    return "asked for three times, paid once"


CRITERIA: dict[str, Callable[[Bed], Awaitable[str]]] = {
    "a task succeeds and is acknowledged": check_success,
    "a failing task is retried, then dead": check_retries,
    "a killed worker's task is reclaimed": check_restart,
    "one key, one side effect": check_single_payment,
}
