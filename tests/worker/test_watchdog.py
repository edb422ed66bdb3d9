"""A worker's watchdog gives back the messages and turns of processes that are gone, and ends no task."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.model import commands as c
from endwell.model.moments import SECOND
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World
from tests.worker.inbox_messages import LONG, offered, row, watch


@pytest.mark.covers("S0.10", "S0.11", "S0.12", "S0.13", "S0.14", "S0.15", "S0.7")
async def test_a_message_whose_processor_is_gone_is_pending_again(clerk: World) -> None:
    """Its worker died, and no supervisor has noticed: the message alone is given back."""
    handle, session = await offered(clerk, lease_seconds=60)
    await clerk.claimed(session, "clerk")
    await clerk.sql("UPDATE agent_inbox SET archived_at = 1 WHERE namespace = ?", clerk.namespace)
    look = watch(clerk)
    now = await clerk.store.now()
    await look.abandoned.requeue_messages(now)
    assert (await row(clerk, handle)).status == "processing"

    clerk.clock.advance(301)
    await look.abandoned.requeue_messages(await clerk.store.now())
    given_back = await row(clerk, handle)
    assert (given_back.status, given_back.processed_at, given_back.archived_at) == ("pending", None, None)
    assert given_back.attempt_id is None

    await look.abandoned.reclaim(await clerk.store.now(), is_needed=True)
    await clerk.working()
    assert await handle.result(PATIENCE_SECONDS) == "done"
    assert (await row(clerk, handle)).status == "consumed"


@pytest.mark.covers("S0.10", "T7")
async def test_a_message_whose_processor_lives_never_becomes_stale(clerk: World) -> None:
    handle, session = await offered(clerk)
    (held,) = await clerk.claimed(session, "clerk")
    clerk.clock.advance(3600)
    await session.beat(held, lease_seconds=LONG)
    look = watch(clerk)
    await look.abandoned.requeue_messages(await clerk.store.now())
    assert (await row(clerk, handle)).status == "processing"
    assert look.abandoned.requeued == 0


@pytest.mark.covers("S0.10", "S0.78")
async def test_the_processing_timeout_of_messages_is_configurable(sqlite_url: str) -> None:
    settings = {"worker.inbox_processing_timeout_seconds": 40}
    async with World(sqlite_url, settings=settings) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        await world.registered("clerk")
        handle, session = await offered(world, lease_seconds=10)
        await world.claimed(session, "clerk")
        world.clock.advance(39)
        await watch(world).abandoned.requeue_messages(await world.store.now())
        assert (await row(world, handle)).status == "processing"
        world.clock.advance(1)
        await watch(world).abandoned.requeue_messages(await world.store.now())
        assert (await row(world, handle)).status == "pending"


@pytest.mark.covers("S0.78")
async def test_requeueing_of_messages_can_be_switched_off(sqlite_url: str) -> None:
    off = {"worker.inbox_processing_timeout_seconds": 0}
    async with World(sqlite_url, settings=off) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        await world.registered("clerk")
        handle, session = await offered(world, lease_seconds=60)
        await world.claimed(session, "clerk")
        world.clock.advance(9000)
        await watch(world).abandoned.requeue_messages(await world.store.now())
        assert (await row(world, handle)).status == "processing"


@pytest.mark.parametrize("first", ["requeue", "worker"])
@pytest.mark.covers("T7")
async def test_a_requeue_that_races_the_finishing_worker_does_no_harm(clerk: World, first: str) -> None:
    """The slow worker's lease has lapsed; its result counts until the turn is reclaimed."""
    handle, session = await offered(clerk, lease_seconds=60)
    (held,) = await clerk.claimed(session, "clerk")
    clerk.clock.advance(301)
    look = watch(clerk)
    if first == "requeue":
        await look.abandoned.requeue_messages(await clerk.store.now())
        await session.finish(held)
    else:
        await session.finish(held)
        await look.abandoned.requeue_messages(await clerk.store.now())
    assert (await handle.status(), (await row(clerk, handle)).status) == ("succeeded", "consumed")


@pytest.mark.covers("S0.15")
async def test_a_reclaim_puts_the_message_back_in_the_same_commit(clerk: World) -> None:
    handle, session = await offered(clerk, lease_seconds=60)
    await clerk.claimed(session, "clerk")
    clerk.clock.advance(61)
    assert await (await clerk.supervisor()).reclaimer.run_once() == 1
    assert ((await handle.task()).status, (await row(clerk, handle)).status) == ("queued", "pending")


WATCHDOG_MAY = {"task.reclaimed", "wait.timed_out", "wait.answered", "task.resumed"}


@pytest.mark.covers("S0.24", "S0.69", "S0.70")
async def test_the_workers_watchdog_never_ends_a_task(clerk: World) -> None:
    """Everything is overdue that can be: each watchdog command is tried, and no terminal event is its own."""
    session = await clerk.silent_session("clerk", lease_seconds=60)
    overdue = await clerk.submitted("clerk", deadline=50)
    reaped = await clerk.submitted("clerk")
    parent = await clerk.submitted("clerk")
    taken = {offer.task.id: offer.task for offer in await clerk.claimed(session, "clerk", 3)}
    waiting = await suspended_parent(clerk, taken[parent.id])
    clerk.clock.advance(1000)
    look = watch(clerk)
    for _ in range(3):
        await look.run_once()
        clerk.clock.advance(1)
    logs = [e for h in (overdue, reaped, parent) for e in await clerk.events(h)]
    logs += await clerk.store.events_of_task(clerk.namespace, waiting)
    own = {event.type for event in logs if event.actor == "watch"}
    assert own >= {"task.reclaimed", "wait.timed_out", "task.resumed"}, "it had something to do"
    assert own <= WATCHDOG_MAY, "and does nothing but wake and give back"


async def suspended_parent(world: World, task: Any) -> str:
    """A turn that waits for a child; the child's id."""
    call_id = f"{task.id}.s.1:()clerk#1"
    child = world.app.runtime.ids.new()
    about: dict[str, Any] = {"command_id": world.app.runtime.ids.new(), "namespace": world.namespace}
    submit = c.Submit(
        **about,
        task_id=child,
        agent="clerk",
        payload=b"null",
        payload_hash="h",
        parent_id=task.id,
        parent_agent="clerk",
        parent_call=call_id,
    )
    wait = c.Call(tool_call_id=call_id, kind="call", within=60 * SECOND, name="clerk", is_child=True)
    suspend = c.Suspend(
        **{**about, "command_id": world.app.runtime.ids.new()},
        task_id=task.id,
        attempt_id=task.attempt_id,
        calls=(wait,),
    )
    await world.store.commit((submit, suspend))
    return child


async def test_only_the_pmo_carries_out_a_stop_that_was_left_behind(clerk: World) -> None:
    """Who ended the parent died right after the commit: the message to its children is in the inbox."""
    session = await clerk.silent_session("clerk", lease_seconds=LONG)
    parent = await clerk.submitted("clerk")
    (held,) = await clerk.claimed(session, "clerk")
    child = await suspended_parent(clerk, held.task)
    cancel = c.Cancel(command_id=clerk.app.runtime.ids.new(), namespace=clerk.namespace, task_id=parent.id)
    await clerk.store._commit((cancel,))
    clerk.clock.advance(6)
    await watch(clerk).run_once()
    assert (await clerk.store.task(clerk.namespace, child)).status == "queued"
    await (await clerk.supervisor()).inbox.run_once()
    assert (await clerk.store.task(clerk.namespace, child)).status == "cancelled"


async def test_a_workers_watchdog_reclaims_but_waits_after_an_absence(sqlite_url: str) -> None:
    """Ten minutes of sleep hit the holder as well: it gets one heartbeat to come back."""
    async with World(sqlite_url, settings={"worker.heartbeat_seconds": 10}) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        await world.registered("clerk")
        handle = await world.submitted("clerk")
        session = await world.silent_session("clerk", lease_seconds=30)
        (held,) = await world.claimed(session, "clerk")
        look = watch(world)
        await look.run_once()
        world.clock.advance(600)
        await look.run_once()
        assert (await handle.task()).attempt_id == held.task.attempt_id
        assert await session.beat(held) == (), "it is back, and still holds its task"
        for _ in range(5):
            world.clock.advance(5)
            await look.run_once()
        assert (await handle.task()).crash_count == 0
        for _ in range(3):
            world.clock.advance(5)
            await look.run_once()
        task = await handle.task()
        assert (task.status, task.crash_count, look.abandoned.reclaimed_count) == ("queued", 1, 1)
