"""What a step costs: the commits and questions that it takes."""

from __future__ import annotations

import asyncio
from typing import Any

from endwell import Context
from endwell.model.commands import TaskCommand
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually
from tests.turn.outside_calls import is_ended_after_a_moment


class Traffic:
    """Counts what a store is asked and told of tasks; heartbeats and claims go on beside them."""

    def __init__(self, store: Any) -> None:
        self.commits = 0
        self.reads: list[str] = []
        commit, rows = store._commit, store._rows

        async def counted_commit(commands: Any) -> Any:
            self.commits += any(isinstance(command, TaskCommand) for command in commands)
            return await commit(commands)

        async def counted_rows(name: str, *parameters: Any) -> Any:
            self.reads.append(name)
            return await rows(name, *parameters)

        store._commit, store._rows = counted_commit, counted_rows


MINE = ("card", "cards_between", "effect", "task_by_id")
"""What a turn might ask; the worker's own loop asks for other things."""


async def test_the_cost_of_a_step_does_not_grow_with_their_number(world: World) -> None:
    traffic = Traffic(world.store)
    seen: dict[int, tuple[int, list[str]]] = {}

    @world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        for number in range(1, 1001):
            before = traffic.commits
            traffic.reads.clear()
            await ctx.step("one", asyncio.sleep, 0, number)  # the same again would be a circle
            if number in (10, 1000):
                seen[number] = (traffic.commits - before, [name for name in traffic.reads if name in MINE])

    await world.working()
    handle = await world.submitted("clerk")
    await handle.result(PATIENCE_SECONDS)
    assert seen == {10: (1, []), 1000: (1, [])}
    sizes = {len(event.data) for event in await world.events(handle) if event.type == "step.recorded"}
    assert max(sizes) - min(sizes) < 20


async def test_a_thousand_records_are_read_in_one_question(world: World) -> None:
    traffic = Traffic(world.store)
    seen: list[tuple[int, list[str]]] = []

    @world.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> None:
        before = traffic.commits
        await ctx.gather(*(ctx.step("one", asyncio.sleep, 0) for _ in range(1000)))
        seen.append((traffic.commits - before, [name for name in traffic.reads if name.startswith("card")]))
        traffic.reads.clear()
        if ctx.retry_count == 0:
            raise RuntimeError

    await world.working()
    handle = await world.submitted("clerk")
    await eventually(lambda: is_ended_after_a_moment(world, handle))
    assert seen[1] == (0, ["cards_between"])
