"""Messages in the inbox of an agent, and a watchdog that looks at them when the test says so."""

from __future__ import annotations

from typing import Any

from endwell import AsyncHandle
from endwell.model import commands as c
from endwell.model.message import InboxRow
from endwell.model.moments import SECOND
from endwell.worker.watchdog import WorkerWatchdog
from tests.support.world import Session, World

LONG = 86_400.0


async def rows(world: World, handle: AsyncHandle) -> list[InboxRow]:
    return await world.store.inbox_page(world.namespace, task_id=handle.id)


async def row(world: World, handle: AsyncHandle) -> InboxRow:
    (found,) = await rows(world, handle)
    return found


async def offered(world: World, lease_seconds: float = LONG) -> tuple[AsyncHandle, Session]:
    """A task in its agent's inbox: a worker could have claimed it and did not."""
    session = await world.silent_session("clerk", lease_seconds=lease_seconds)
    handle = await world.submitted("clerk")
    world.clock.advance(2)
    assert await (await world.supervisor()).dispatcher.run_once() == 1
    return handle, session


def watch(world: World, **settings: Any) -> WorkerWatchdog:
    """A worker's watchdog that ticks only when `run_once` is called."""
    return WorkerWatchdog(world.node.make_actor("watch"), world.app.runtime, world.app.settings)


def suspend_for_a_tool(world: World, task: Any) -> c.Suspend:
    call = c.Call(
        tool_call_id=f"{task.id}.s.1:()look#1",
        kind="tool",
        within=60 * SECOND,
        name="look",
        content=b"{}",
        content_hash="h",
    )
    return c.Suspend(
        command_id=world.app.runtime.ids.new(),
        namespace=world.namespace,
        task_id=task.id,
        attempt_id=task.attempt_id,
        calls=(call,),
    )


def report_timeout(world: World, handle: AsyncHandle) -> c.InjectTimeout:
    world.clock.advance(61)
    about = {"command_id": world.app.runtime.ids.new(), "namespace": world.namespace}
    return c.InjectTimeout(**about, task_id=handle.id)
