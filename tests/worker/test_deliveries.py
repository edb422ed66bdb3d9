"""How often a message is delivered: counted in its inbox row, before it is tried."""

from __future__ import annotations

import asyncio
import signal

import pytest

from endwell import AsyncHandle
from endwell.model import commands as c
from endwell.model.message import InboxRow
from tests.patience import PATIENCE_SECONDS
from tests.support import deliver_process
from tests.support.world import World
from tests.worker.inbox_messages import LONG, report_timeout, rows, suspend_for_a_tool, watch


async def timeout_row(world: World, handle: AsyncHandle) -> InboxRow:
    (found,) = [one for one in await rows(world, handle) if one.message_type == "timeout"]
    return found


async def with_reports(world: World, count: int) -> list[AsyncHandle]:
    """Suspended tasks whose timeouts are reported to the inbox by a process that died right after that."""
    session = await world.silent_session("clerk", lease_seconds=LONG)
    handles = [await world.submitted("clerk", number) for number in range(count)]
    for offer in await world.claimed(session, "clerk", count):
        await world.store.commit_one(suspend_for_a_tool(world, offer.task))
    for handle in handles:
        await world.store._commit((report_timeout(world, handle),))
    return handles


async def tick_in_a_process(world: World, poisoned: AsyncHandle) -> int:
    """The exit code of a process that makes one tick, once the lease of the last one is over."""
    world.clock.advance(31)
    now = await world.store.now()
    child = deliver_process.started(world.app.url, world.namespace, now, poisoned.id)
    return await asyncio.to_thread(child.wait, PATIENCE_SECONDS)


@pytest.mark.covers("S2.9")
async def test_a_message_that_kills_its_workers_is_skipped_after_five_retries(world: World) -> None:
    @world.app.agent("clerk")
    async def clerk(number: int = 0) -> None: ...

    await world.registered("clerk")
    poisoned, *healthy = await with_reports(world, 4)
    before = await poisoned.task()
    for number in range(1, 1 + 5):
        assert await tick_in_a_process(world, poisoned) == -signal.SIGKILL
        found = await timeout_row(world, poisoned)
        assert (found.status, found.retry_count) == ("pending", number)
    assert await tick_in_a_process(world, poisoned) == 0
    skipped = await timeout_row(world, poisoned)
    assert (skipped.status, skipped.watchdog_error, skipped.retry_count) == ("skipped", "delivery_failed", 5)
    assert "inbox.skipped" in await world.history(poisoned)
    after = await poisoned.task()
    counters = [(task.retry_count, task.dispatch_count, task.crash_count) for task in (before, after)]
    assert counters[0] == counters[1], "the cap is the message's own: its task is charged nothing"
    for handle in healthy:
        assert (await timeout_row(world, handle)).status == "consumed", "its neighbours arrive"
        assert (await handle.task()).status == "queued"


async def test_a_message_that_stays_in_the_inbox_is_not_counted_down(world: World) -> None:
    @world.app.agent("clerk")
    async def clerk(number: int = 0) -> None: ...

    await world.registered("clerk")
    session = await world.silent_session("clerk", lease_seconds=LONG)
    handle = await world.submitted("clerk", 1)
    (offer,) = await world.claimed(session, "clerk", 1)
    await world.store.commit_one(suspend_for_a_tool(world, offer.task))
    signal_ = c.Signal(
        command_id=world.app.runtime.ids.new(),
        namespace=world.namespace,
        task_id=handle.id,
        name="later",
        content=b"1",
        content_hash="h",
    )
    await world.store.commit_one(signal_)
    look = watch(world)
    for _ in range(8):
        world.clock.advance(6)
        await look.run_once()
    (found,) = [one for one in await rows(world, handle) if one.message_type == "signal"]
    assert (found.status, found.retry_count) == ("pending", 0)
