"""What tests of turns that wait have in common: the task, its open calls, and the timeout."""

from __future__ import annotations

from endwell import AsyncHandle
from endwell.model.task import Task, waits_of
from tests.support.world import World

SUSPEND_SECONDS = 30.0
"""The default of `worker.suspend_timeout_seconds`."""


async def suspended(world: World, handle: AsyncHandle) -> Task:
    return await world.in_status(handle, "suspended")


def calls(task: Task) -> list[str]:
    return [wait.tool_call_id for wait in waits_of(task)]
