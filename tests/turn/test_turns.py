"""How an agent's function may end, and what the task makes of it: nothing an agent does ends its worker."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from endwell import Context, TaskFailed
from endwell.model.task import Task
from endwell.runtime.current import CURRENT_TURN
from endwell.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually, terminal


async def failed_once(world: World, agent: str, payload: Any = None) -> Task:
    """The task after its first failure."""
    handle = await world.submitted(agent, payload)

    async def has_failed() -> bool:
        return (await handle.task()).retry_count >= 1

    await eventually(has_failed, "the turn has failed")
    return await handle.task()


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even my text fails")


class Verbose(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


RAISED: dict[str, Any] = {
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "cancelled": asyncio.CancelledError(),
    "generator": GeneratorExit(),
    "base": BaseException("rare"),
    "stop": StopIteration(1),
    "hostile": Hostile(),
    "verbose": Verbose(),
    "nul": ValueError("a\x00b\ud800c"),
}


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("agent", ["sync", "async"])
async def test_any_exception_of_an_agent_fails_only_its_turn(
    sqlite_world: World, agent: str, kind: str
) -> None:
    world = sqlite_world

    @world.app.agent("async")
    async def raises(kind: str) -> None:
        raise RAISED[kind]

    @world.app.agent("sync")
    def raises_in_thread(kind: str) -> None:
        raise RAISED[kind]

    @world.app.agent("well")
    async def well() -> str:
        return "fine"

    worker = await world.working()
    task = await failed_once(world, agent, kind)

    assert (task.status, task.reason) == ("queued", "exception")
    assert task.error is not None
    assert len(task.error) < 20_000
    assert await (await world.submitted("well")).result(PATIENCE_SECONDS) == "fine"
    assert worker.failures == 0


async def test_the_traceback_is_kept_and_bounded(world: World) -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("at the bottom" + "!" * 100_000)

    @world.app.agent("deep", retries=0)
    async def run() -> None:
        deep(500)

    await world.working()
    handle = await world.submitted("deep")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    error = failed.value.deliverable["error"]
    assert error["type"] == "ValueError"
    assert error["message"].startswith("at the bottom")
    assert len(error["message"]) <= 2_000
    assert 0 < len(error["traceback"]) <= 8_000

    @world.app.agent("shallow", retries=0)
    def shallow() -> None:
        raise KeyError("here")

    await world.working(agents=["shallow"])
    with pytest.raises(TaskFailed) as failed:
        await (await world.submitted("shallow")).result(PATIENCE_SECONDS)
    traceback = failed.value.deliverable["error"]["traceback"]
    assert "in shallow" in traceback
    assert "endwell/worker" not in traceback, "only the agent's own code is of interest"


class Opaque: ...


class Trap(dict[str, int]):
    def values(self) -> Any:
        raise OSError("do not look")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


UNSTORABLE: dict[str, Any] = {
    "object": Opaque(),
    "nan": float("nan"),
    "huge": "x" * (1024 * 1024),
    "deep": nested(65),
    "surrogate": "\ud800",
    "nul": "\x00",
    "set": {1, 2},
    "bigint": 2**64,
    "trap": Trap(a=1),
}


@pytest.mark.parametrize("kind", UNSTORABLE)
@pytest.mark.covers("S4.10", "S4.51", "S4.53")
async def test_a_result_that_cannot_be_stored_fails_the_task_without_a_retry(
    sqlite_world: World, kind: str
) -> None:
    world = sqlite_world

    @world.app.agent("maker")
    async def maker(kind: str) -> Any:
        return UNSTORABLE[kind]

    await world.working()
    handle = await world.submitted("maker", kind)
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    task = failed.value.task
    assert (task.reason, task.retry_count, task.dispatch_count) == ("result_not_storable", 1, 1)
    assert task.dead_letter == "open"
    history = await world.history(handle)
    assert terminal(history) == ["task.failed"]
    assert history[-1] == "task.dlq"


async def test_cancel_reaches_a_running_agent_at_once_and_ends_the_task_once(world: World) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @world.app.agent("long")
    async def long() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise
        return "never"

    await world.working()
    handle = await world.submitted("long")
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    await handle.cancel()
    await asyncio.wait_for(stopped.wait(), PATIENCE_SECONDS)

    assert terminal(await world.history(handle)) == ["task.cancelled"]
    assert "write.refused" not in await world.history(handle), (
        "a worker that knows of the loss commits nothing"
    )


async def rounds_of(worker: Worker, count: int = 3) -> None:
    """Until the worker has come round so often, and might wrongly have begun something."""
    usual, made = worker.run_once, 0

    async def counted() -> bool:
        nonlocal made
        made += 1
        return await usual()

    worker.run_once = counted  # type: ignore[method-assign]  # the test listens in
    await eventually(lambda: made > count, f"the worker has come round {count} times")
    worker.run_once = usual  # type: ignore[method-assign]


async def test_an_agent_that_swallows_its_cancellation_cannot_finish_a_cancelled_task(world: World) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    @world.app.agent("stubborn")
    async def stubborn() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate.wait()
        return "done all the same"

    worker = await world.working(concurrency=1)
    handle = await world.submitted("stubborn")
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    await handle.cancel()
    other = await world.submitted("stubborn")
    await rounds_of(worker)
    status = await other.status()
    began.clear()
    gate.set()
    assert status == "queued", "the slot is taken until the function has really ended"
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)

    assert await handle.status() == "cancelled"
    assert terminal(await world.history(handle)) == ["task.cancelled"]
    await other.cancel()
    assert worker.failures == 0


async def test_a_thread_keeps_its_slot_until_its_function_ends(world: World) -> None:
    began, gate = threading.Event(), threading.Event()
    running: list[int] = []
    most = 0

    @world.app.agent("blocking")
    def blocking(number: int) -> int:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        began.set()
        gate.wait(PATIENCE_SECONDS)
        running.remove(number)
        return number

    worker = await world.working(concurrency=1)
    first = await world.submitted("blocking", 1)
    await eventually(began.is_set)
    await first.cancel()
    second = await world.submitted("blocking", 2)
    await rounds_of(worker)
    seen = (await second.status(), list(running))
    gate.set()
    assert seen == ("queued", [1])

    assert await second.result(PATIENCE_SECONDS) == 2
    assert most == 1
    assert await first.status() == "cancelled"


async def test_a_thread_learns_of_its_cancellation_at_its_next_sign_of_progress(world: World) -> None:
    began, gate, heard = threading.Event(), threading.Event(), threading.Event()

    @world.app.agent("blocking")
    def blocking(ctx: Context) -> None:
        began.set()
        gate.wait(PATIENCE_SECONDS)
        try:
            ctx.progress("still here")  # type: ignore[unused-coroutine]  # blocks in a thread
        except BaseException as error:
            if type(error).__name__ == "StaleAttempt":
                heard.set()
            raise

    await world.working()
    handle = await world.submitted("blocking")
    await eventually(began.is_set)
    await handle.cancel()
    gate.set()
    await eventually(heard.is_set)
    assert terminal(await world.history(handle)) == ["task.cancelled"]


async def test_turns_abandoned_before_their_first_step_give_their_slots_back(sqlite_world: World) -> None:
    """Claimed, begun, and lost within one round of the event loop."""
    world = sqlite_world
    ran: list[int] = []

    @world.app.agent("quick")
    async def quick(number: int) -> int:
        ran.append(number)
        return number

    worker = await world.started_worker(concurrency=2)
    lost = await world.client.submit_many("quick", [1, 2])
    assert await worker.run_once()
    worker._turns.abandon_all()  # what the heartbeat does when it learns of a loss
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert worker._turns.slots_taken == 0
    assert ran == []
    assert [await handle.status() for handle in lost] == ["running", "running"]


async def test_what_an_agent_logs_can_be_traced_to_its_task(sqlite_world: World) -> None:
    """Also from a thread, and from everything that the function calls."""
    world = sqlite_world
    seen: list[Any] = []

    @world.app.agent("beside")
    async def beside() -> None:
        seen.append(CURRENT_TURN.get())

    @world.app.agent("threaded")
    def threaded() -> None:
        seen.append(CURRENT_TURN.get())

    await world.working()
    for agent in ("beside", "threaded"):
        handle = await world.client.submit(agent)
        await handle.result(PATIENCE_SECONDS)
        turn = seen.pop()
        assert turn is not None
        assert turn[0] == handle.id
    assert CURRENT_TURN.get() is None
