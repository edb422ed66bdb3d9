"""The inside of a turn: recorded steps, how soon an answer wakes a turn, how fast one is replayed."""

from __future__ import annotations

from functools import partial
from typing import Any

from endwell.bench import agents
from endwell.bench.drain import Measured, Measurement, percentiles
from endwell.bench.place import BenchPlace, Ground
from endwell.bench.rows import Row, Sizes
from endwell.operate.verify import verify

LOOK_SECONDS = 0.002
LIMIT_SECONDS = 300.0


def inside(ground: Ground, sizes: Sizes) -> list[Measurement]:
    """Recording, waking up, and coming by what was recorded."""
    replay = f"replay_{sizes.replayed_steps}_steps"
    many = partial(_many, ground, sizes.step_tasks, sizes.steps_each)
    return [
        Measurement("steps of one task", ("steps_one_task",), partial(_alone, ground, sizes.steps_alone)),
        Measurement("steps of many tasks", ("steps_many_tasks",), many),
        woken(ground, sizes),
        Measurement("replay of steps", (replay,), partial(_replayed, ground, sizes.replayed_steps)),
    ]


def woken(ground: Ground, sizes: Sizes) -> Measurement:
    """How soon a suspended turn goes on."""
    return Measurement("an answer", ("resume_p50", "resume_p99"), partial(_resumed, ground, sizes.resumes))


async def _alone(ground: Ground, steps: int) -> Measured:
    async with ground.place() as place:
        await place.start("worker")
        handle = await place.node.client.submit(agents.STEPS, steps)
        value = await handle.result(timeout=LIMIT_SECONDS)
        seconds = await _seconds(place, [handle.id])
        rows = [Row("steps_one_task", ground.kind, steps / seconds, "steps/s", steps)]
        return Measured(rows, await _problems(place, [value], steps))


async def _many(ground: Ground, tasks: int, steps: int) -> Measured:
    async with ground.place() as place:
        handles = await place.node.client.submit_many(agents.STEPS, [steps] * tasks)
        await place.start("worker")
        values = [await handle.result(timeout=LIMIT_SECONDS) for handle in handles]
        seconds = await _seconds(place, [handle.id for handle in handles])
        count = tasks * steps
        rows = [Row("steps_many_tasks", ground.kind, count / seconds, "steps/s", count)]
        return Measured(rows, await _problems(place, values, steps))


async def _seconds(place: BenchPlace, ids: list[str]) -> float:
    """From the first claim to the last end, by the store's own timestamps."""
    first, last = [], []
    for start in range(0, len(ids), 500):
        some = await place.node.store.tasks_by_ids(place.namespace, ids[start : start + 500])
        first += [task.started_at or 0 for task in some]
        last += [task.ended_at or 0 for task in some]
    return max(max(last) - min(first), 1) / 1_000_000


async def _resumed(ground: Ground, count: int) -> Measured:
    """From the call of `answer` to the result of the turn that waited for it, with an idle worker."""
    async with ground.place() as place:
        await place.start("worker")
        times, values = [], []
        for number in range(-5, count):
            handle = await place.node.client.submit(agents.ASKS)
            call = await _open_call(place, handle.id)
            begin = place.runtime.clock.monotonic()
            await place.node.client.answer(call, 7)
            values.append(await handle.result(timeout=LIMIT_SECONDS))
            if number >= 0:
                times.append(place.runtime.clock.monotonic() - begin)
        return Measured(percentiles("resume", ground.kind, times), await _problems(place, values, 7))


async def _open_call(place: BenchPlace, task_id: str) -> str:
    limit = place.runtime.clock.monotonic() + LIMIT_SECONDS
    while place.runtime.clock.monotonic() < limit:
        calls = await place.node.store.open_calls(place.namespace, task_id=task_id)
        if calls:
            return calls[0].tool_call_id
        await place.runtime.sleep(LOOK_SECONDS)
    raise TimeoutError(f"task {task_id} made no call")


async def _replayed(ground: Ground, steps: int) -> Measured:
    async with ground.place() as place:
        await place.start("worker")
        handle = await place.node.client.submit(agents.REPLAYS, steps)
        await place.node.client.answer(await _open_call(place, handle.id), 7)
        seconds = await handle.result(timeout=LIMIT_SECONDS)
        rows = [Row(f"replay_{steps}_steps", ground.kind, 1000 * seconds, "ms", steps)]
        return Measured(rows, await _problems(place, [], None))


async def _problems(place: BenchPlace, values: list[Any], expected: Any) -> list[str]:
    await place.stop()
    wrong = [f"a task returned {value!r} instead of {expected!r}" for value in values if value != expected]
    found = await verify(place.node.store, [place.namespace])
    return wrong + [f"log of task {problem['task_id']}: {problem['kind']}" for problem in found["problems"]]
