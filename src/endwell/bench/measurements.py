"""What the bench measures: submitting, draining, waiting for results, and the inside of turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from endwell.bench import agents
from endwell.bench.checks import CheckedRun, check
from endwell.bench.place import BenchPlace, Ground
from endwell.bench.rows import Row, Sizes, percentile_rows
from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.runtime.processes import rss_bytes

PAUSE_SECONDS = 0.005
"""Between two submissions that measure latency, so that the worker is idle again."""
LOOK_SECONDS = 0.002
LIMIT_SECONDS = 300.0
WARM_UP = 20
ANSWER = 7


class NotProven(EndwellError):
    """The figure does not hold, because its check found problems."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(f"{len(problems)} problems, first: {problems[0]}")


class Measurement(msgspec.Struct, frozen=True):
    """One thing that is measured by itself, and the rows that it gives."""

    title: str
    gives: tuple[str, ...]
    run: Callable[[], Awaitable[list[Row]]]


class Measurements:
    """Each method measures at a fresh place and returns its rows; NotProven if they do not hold."""

    def __init__(self, ground: Ground, sizes: Sizes) -> None:
        self._ground = ground
        self._sizes = sizes

    def all_measurements(self) -> list[Measurement]:
        """In the order of the table. Where a stream carries the turns, steps are the same as without."""
        replay = f"replay_{self._sizes.replayed_steps}_steps"
        drain = self.measure_drain
        found = [
            Measurement("submit one by one", ("submit_one_by_one",), self.submit_one_by_one),
            Measurement(
                "drain by one worker", ("submit_bulk", "drain_1_worker"), partial(self.measure_drain, 1)
            ),
            Measurement("drain by two workers", ("drain_2_workers",), partial(drain, 2)),
            Measurement("idle latency", ("idle_latency_p50", "idle_latency_p99"), self.measure_latency),
            *map(self._backlog_measurement, self._sizes.backlogs),
            Measurement("steps of one task", ("steps_one_task",), self.steps_of_one_task),
            Measurement("steps of many tasks", ("steps_many_tasks",), self.steps_of_many_tasks),
            Measurement("an answer", ("resume_p50", "resume_p99"), self.resume),
            Measurement("replay of steps", (replay,), self.replay),
        ]
        inside = ("steps_one_task", "steps_many_tasks", replay)
        return [each for each in found if not (self._ground.is_streamed and each.gives[0] in inside)]

    def _backlog_measurement(self, count: int) -> Measurement:
        gives = ("drain_at", "claim_p50_at", "claim_p99_at", "memory_after")
        names = tuple(f"{name}_{count}" for name in gives)
        return Measurement(f"backlog of {count:,}", names, partial(self.measure_backlog, count))

    def _row(self, name: str, value: float, unit: str, n: int) -> Row:
        return Row(name, self._ground.store_kind, value, unit, n)

    async def submit_one_by_one(self) -> list[Row]:
        """Each submission waits for the one before it."""
        count = self._sizes.one_by_one
        async with self._ground.make_place() as place:
            begin = place.runtime.clock.monotonic()
            for number in range(count):
                await place.submit_one(agents.AGENT, number, result=number)
            passed = place.runtime.clock.monotonic() - begin
            await _drain_backlog(place, 1)
        return [self._row("submit_one_by_one", count / passed, "tasks/s", count)]

    async def measure_drain(self, workers: int) -> list[Row]:
        """Submit in bulk; then workers drain the backlog."""
        count = self._sizes.bulk
        async with self._ground.make_place() as place:
            begin = place.runtime.clock.monotonic()
            await place.submit(count)
            submitted = self._row(
                "submit_bulk", count / (place.runtime.clock.monotonic() - begin), "tasks/s", count
            )
            checked, _ = await _drain_backlog(place, workers)
        name = "drain_1_worker" if workers == 1 else f"drain_{workers}_workers"
        drained = self._row(name, count / checked.drain_seconds, "tasks/s", count)
        return [submitted, drained] if workers == 1 else [drained]

    async def measure_latency(self) -> list[Row]:
        """From the call of `submit` to the result in hand, with one warm and idle worker."""
        times: list[float] = []
        async with self._ground.make_place() as place, _one_worker(place):
            for number in range(-WARM_UP, self._sizes.latency):
                begin = place.runtime.clock.monotonic()
                handle = await place.submit_one(agents.AGENT, number, result=number)
                await handle.result(timeout=30)
                if number >= 0:
                    times.append(place.runtime.clock.monotonic() - begin)
                await place.runtime.sleep(PAUSE_SECONDS)
        return percentile_rows("idle_latency", self._ground.store_kind, times)

    async def measure_backlog(self, count: int) -> list[Row]:
        """Claims and a drain at this backlog, and the worker's memory after it."""
        async with self._ground.make_place() as place:
            await place.submit(count)
            times = await _claim_times(place, self._sizes.claims)
            checked, memory = await _drain_backlog(place, 1)
        return [
            self._row(f"drain_at_{count}", count / checked.drain_seconds, "tasks/s", count),
            *percentile_rows("claim", self._ground.store_kind, times, f"_at_{count}"),
            self._row(f"memory_after_{count}", memory / 2**20, "MiB", count),
        ]

    async def steps_of_one_task(self) -> list[Row]:
        """Record steps one after the other."""
        steps = self._sizes.steps_alone
        async with self._ground.make_place() as place:
            async with _one_worker(place):
                await (await place.submit_one(agents.STEPS, steps, result=steps)).result(
                    timeout=LIMIT_SECONDS
                )
            checked = await _require_proof(place)
        return [self._row("steps_one_task", steps / checked.drain_seconds, "steps/s", steps)]

    async def steps_of_many_tasks(self) -> list[Row]:
        """Record steps of many tasks side by side."""
        tasks, steps = self._sizes.step_tasks, self._sizes.steps_each
        async with self._ground.make_place() as place:
            handles = await place.node.client.submit_many(agents.STEPS, [steps] * tasks)
            place.expected = dict.fromkeys((handle.id for handle in handles), steps)
            checked, _ = await _drain_backlog(place, 1)
        return [
            self._row("steps_many_tasks", tasks * steps / checked.drain_seconds, "steps/s", tasks * steps)
        ]

    async def resume(self) -> list[Row]:
        """From the call of `answer` to the result of the turn that waited for it, with an idle worker."""
        times = []
        async with self._ground.make_place() as place, _one_worker(place):
            for number in range(-5, self._sizes.resumes):
                handle = await place.submit_one(agents.ASKS, result=ANSWER)
                call = await _open_call(place, handle.id)
                begin = place.runtime.clock.monotonic()
                await place.node.client.answer(call, ANSWER)
                await handle.result(timeout=LIMIT_SECONDS)
                if number >= 0:
                    times.append(place.runtime.clock.monotonic() - begin)
        return percentile_rows("resume", self._ground.store_kind, times)

    async def replay(self) -> list[Row]:
        """How long a resumed turn takes to return its recorded steps."""
        steps = self._sizes.replayed_steps
        async with self._ground.make_place() as place, _one_worker(place):
            handle = await place.submit_one(agents.REPLAYS, steps)
            await place.node.client.answer(await _open_call(place, handle.id), ANSWER)
            seconds = await handle.result(timeout=LIMIT_SECONDS)
        return [self._row(f"replay_{steps}_steps", 1000 * seconds, "ms", steps)]


@asynccontextmanager
async def _one_worker(place: BenchPlace) -> AsyncIterator[None]:
    """One worker process beside the block; afterwards everything is read back."""
    await place.start("worker")
    yield
    await place.stop()
    await _require_proof(place)


async def _drain_backlog(place: BenchPlace, workers: int) -> tuple[CheckedRun, int]:
    """Start workers on the backlog, wait for the last end, read everything back; also the memory."""
    since = await place.node.store.now()
    members = await place.start("worker", workers)
    await place.wait_drained()
    memory = max(rss_bytes(member.pid) or 0 for member in members)
    await place.stop()
    return await _require_proof(place, since), memory


async def _require_proof(place: BenchPlace, since: int = 0) -> CheckedRun:
    checked = await check(place, since)
    if checked.problems:
        raise NotProven(checked.problems)
    return checked


async def _claim_times(place: BenchPlace, count: int) -> list[float]:
    """Time single claims through the door. What was claimed is handed back at no cost to its task."""
    actor, session, times = place.node.make_actor("bench"), place.runtime.ids.new(), list[float]()
    opening = {"kind": "worker", "name": "bench", "host": "bench", "pid": 0, "agents": (agents.AGENT,)}
    await actor.send(c.OpenSession, session_id=session, concurrency=1, lease=600_000_000, **opening)
    for _ in range(count):
        begin = place.runtime.clock.monotonic()
        reply = await actor.send(c.ClaimNext, session_id=session, agents=(agents.AGENT,), limit=1)
        times.append(place.runtime.clock.monotonic() - begin)
        for offer in reply.taken:
            await actor.send(c.HandBack, task_id=offer.task.id, attempt_id=offer.task.attempt_id or "")
    await actor.send(c.CloseSession, session_id=session)
    return times


async def _open_call(place: BenchPlace, task_id: str) -> str:
    limit = place.runtime.clock.monotonic() + LIMIT_SECONDS
    while place.runtime.clock.monotonic() < limit:
        if calls := await place.node.store.open_calls(place.namespace, task_id=task_id):
            return calls[0].tool_call_id
        await place.runtime.sleep(LOOK_SECONDS)
    raise TimeoutError(f"task {task_id} made no call")
