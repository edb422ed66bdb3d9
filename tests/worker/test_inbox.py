"""The inbox: the truth of what was sent to an agent, whichever process dies on the way."""

from __future__ import annotations

from typing import Any

import pytest

from endwell import AsyncHandle
from endwell.machine.table import TABLE
from endwell.model import commands as c
from endwell.model.message import INBOX_FIELDS, InboxRow
from endwell.operate import inbox
from endwell.policy.limits import SECOND
from endwell.worker.watchdog import WorkerWatchdog
from tests.machine.planting import change_rule
from tests.patience import PATIENCE_SECONDS
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


@pytest.mark.covers("S0.3", "S0.83")
async def test_a_turn_goes_through_the_inbox_from_pending_to_processing_to_consumed(clerk: World) -> None:
    handle, session = await offered(clerk)
    pending = await row(clerk, handle)
    task = await handle.task()
    assert (pending.message_type, pending.status, pending.agent) == ("turn", "pending", "clerk")
    assert (pending.turn_id, pending.turn_epoch, pending.channel) == (task.turn_id, task.epoch, "main")
    assert (pending.processed_at, pending.archived_at) == (None, None)

    (held,) = await clerk.claimed(session, "clerk")
    taken = await row(clerk, handle)
    assert (taken.status, taken.attempt_id) == ("processing", held.task.attempt_id)
    assert taken.processed_at is not None

    await session.finish(held)
    done = await row(clerk, handle)
    assert (done.status, done.archived_at is not None) == ("consumed", True)


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


async def test_a_message_is_kept_once_per_type_and_correlation(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    session = await clerk.silent_session("clerk", lease_seconds=LONG)
    await clerk.claimed(session, "clerk")
    for said in (b"1", b"2"):
        await clerk.store.commit_one(answer(clerk, handle, said))
    kept = await rows(clerk, handle)
    assert [(one.message_type, one.status) for one in kept] == [("tool_result", "pending")]


def answer(world: World, handle: AsyncHandle, content: bytes, step: str = "1:()look#1") -> c.Answer:
    return c.Answer(
        command_id=world.app.runtime.ids.new(),
        namespace=world.namespace,
        task_id=handle.id,
        tool_call_id=f"{handle.id}.s.{step}",
        content=content,
        content_hash="h",
    )


async def test_messages_are_handed_out_oldest_first(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    for number in range(3):
        await clerk.store.commit_one(answer(clerk, handle, b"1", f"1:()look#{3 - number}"))
        clerk.clock.advance(1)
    waiting = await clerk.store.pending_messages(clerk.namespace, handle.id)
    assert [message.correlation_id[-1] for message in waiting] == ["3", "2", "1"]
    times = [message.created_at for message in waiting]
    assert times == sorted(times)


async def test_offered_turns_are_taken_oldest_first(clerk: World) -> None:
    session = await clerk.silent_session("clerk", lease_seconds=LONG)
    handles = []
    for number in range(3):
        handles.append(await clerk.submitted("clerk", number))
        clerk.clock.advance(1)
    clerk.clock.advance(2)
    assert await (await clerk.supervisor()).dispatcher.run_once() == 3
    taken = [(await clerk.claimed(session, "clerk"))[0].task.id for _ in range(3)]
    assert taken == [handle.id for handle in handles]


@pytest.mark.covers("S0.75", "S0.76")
async def test_ringing_and_skipping_can_be_switched_off(sqlite_url: str) -> None:
    off = {"pmo.pending_wakeup_seconds": 0, "pmo.pending_wakeup_skip_seconds": -1}
    async with World(sqlite_url, settings=off) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        await world.registered("clerk")
        handle, _ = await offered(world)
        await without_channel(world, handle)
        world.clock.advance(9000)
        pmo = await world.supervisor()
        assert await pmo.inbox.run_once() == 0
        assert (await row(world, handle)).status == "pending"


async def without_channel(world: World, handle: AsyncHandle) -> None:
    """As a foreign program might have written it."""
    await world.sql(
        "UPDATE agent_inbox SET channel = NULL WHERE namespace = ? AND task_id = ?",
        world.namespace,
        handle.id,
    )


@pytest.mark.covers("S0.61", "S0.62", "S0.63", "S0.64", "S0.76")
async def test_a_message_without_a_channel_is_skipped_once_it_is_old_and_the_log_says_so(
    clerk: World,
) -> None:
    handle, _ = await offered(clerk)
    await without_channel(clerk, handle)
    pmos = [await clerk.supervisor(), await clerk.supervisor(await clerk.another_node())]
    clerk.clock.advance(290)
    for pmo in pmos:
        assert await pmo.inbox.run_once() == 0, "there is nowhere to ring"
    assert (await row(clerk, handle)).status == "pending"

    clerk.clock.advance(12)
    for pmo in pmos:
        await pmo.inbox.run_once()
    skipped = await row(clerk, handle)
    assert (skipped.status, skipped.watchdog_error) == ("skipped", "missing_channel")
    assert skipped.watchdog_at == skipped.archived_at is not None
    (told,) = await clerk.facts(handle, "inbox.skipped")
    assert (told.message_id, told.message_type, told.watchdog_error) == (
        skipped.id,
        "turn",
        "missing_channel",
    )


@pytest.mark.covers("S0.61", "S0.63")
async def test_a_message_without_a_task_is_skipped(clerk: World) -> None:
    await clerk.sql(
        "INSERT INTO agent_inbox (namespace, id, agent, message_type, correlation_id, status, created_at)"
        " VALUES (?, 'stray', 'clerk', 'signal', 'stray', 'pending', ?)",
        clerk.namespace,
        await clerk.store.now(),
    )
    pmo = await clerk.supervisor()
    clerk.clock.advance(301)
    await pmo.inbox.run_once()
    stray = await clerk.store.inbox_row(clerk.namespace, "stray")
    assert (stray.status, stray.watchdog_error) == ("skipped", "missing_channel")


async def test_a_message_to_a_task_that_has_ended_is_skipped_and_the_log_says_so(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    await clerk.store.commit_one(answer(clerk, handle, b"1"))
    await handle.cancel()
    await watch(clerk).run_once()
    skipped = await row(clerk, handle)
    assert (skipped.status, skipped.watchdog_error) == ("skipped", "task_ended")
    assert (await clerk.history(handle))[-1] == "inbox.skipped"


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


async def test_the_inbox_view_has_every_column_under_its_own_name(clerk: World) -> None:
    handle, _ = await offered(clerk)
    page = await inbox.page(clerk.store, clerk.namespace, agent="clerk", status="pending")
    (item,) = page["items"]
    renamed = {
        "id": "inbox_id",
        "namespace": "project_id",
        "agent": "agent_id",
        "channel": "channel_id",
        "turn_id": "agent_turn_id",
    }
    assert set(item) == {renamed.get(name, name) for name in INBOX_FIELDS}
    assert (item["task_id"], item["message_type"], item["enqueue_mode"]) == (handle.id, "turn", "dispatch")
    whole = await inbox.read_message(clerk.store, clerk.namespace, item["inbox_id"])
    assert whole["content"] is None


@pytest.mark.covers("S2.9")
async def test_an_undeliverable_message_is_skipped_after_five_retries(
    clerk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect, as far as anybody can tell; the messages beside it arrive."""
    session = await clerk.silent_session("clerk", lease_seconds=LONG)
    handles = [await clerk.submitted("clerk", number) for number in range(2)]
    for offer in await clerk.claimed(session, "clerk", 2):
        await clerk.store.commit_one(_waiting(clerk, offer.task))
    poisoned, healthy = handles
    kind: type[c.Command] = c.Deliver
    usual = TABLE[kind].then

    def broken(task: Any, *arguments: Any) -> Any:
        if task.id == poisoned.id:
            raise ZeroDivisionError("a defect")
        return usual(task, *arguments)

    change_rule(monkeypatch, kind, then=broken)
    for handle in handles:
        await clerk.store.commit_one(_timeout_of(clerk, handle))
    look = watch(clerk)
    for _ in range(1 + 5):  # the first try, and five more
        assert (await row(clerk, poisoned)).status == "pending"
        clerk.clock.advance(31)  # past the lease of the last try
        await look.run_once()
    (skipped,) = [one for one in await rows(clerk, poisoned) if one.message_type == "timeout"]
    assert (skipped.status, skipped.watchdog_error) == ("skipped", "delivery_failed")
    assert "inbox.skipped" in await clerk.history(poisoned)
    assert (await row(clerk, healthy)).status == "consumed"
    assert [(await handle.task()).status for handle in handles] == ["queued", "queued"], (
        "what it said was found another way"
    )


def _waiting(world: World, task: Any) -> c.Suspend:
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


def _timeout_of(world: World, handle: AsyncHandle) -> c.InjectTimeout:
    world.clock.advance(61)
    about = {"command_id": world.app.runtime.ids.new(), "namespace": world.namespace}
    return c.InjectTimeout(**about, task_id=handle.id)


@pytest.mark.covers("S2.8")
async def test_an_agent_that_returns_none_succeeds(clerk: World) -> None:
    """None is a result like any other: the task is done and is not delivered again."""

    @clerk.app.agent("silent")
    async def silent() -> None:
        return None

    await clerk.working()
    handle = await clerk.submitted("silent")
    assert await handle.result(PATIENCE_SECONDS) is None
    clerk.clock.advance(3600)
    await (await clerk.supervisor()).run_once()
    task = await handle.task()
    assert (task.status, task.dispatch_count, task.retry_count) == ("succeeded", 1, 0)


@pytest.mark.covers("S0.50", "S0.57")
@pytest.mark.parametrize("how", ["dispatch_timeout", "reap"])
async def test_the_next_waiting_task_is_offered_in_the_tick_that_ends_a_turn(clerk: World, how: str) -> None:
    """Both are for one key, which the first one holds until its turn ends."""
    session = await clerk.silent_session("clerk", lease_seconds=LONG)
    first = await clerk.submitted("clerk/k", 1, priority=1)
    second = await clerk.submitted("clerk/k", 2)
    pmo = await clerk.supervisor()
    clerk.clock.advance(2)
    await pmo.run_once()
    assert ((await first.task()).status, (await second.task()).status) == ("dispatched", "queued")
    if how == "reap":
        await clerk.claimed(session, "clerk")
    clerk.clock.advance(31 if how == "dispatch_timeout" else 301)
    await session.beat(lease_seconds=LONG)
    await (await clerk.supervisor()).run_once()
    assert (await first.task()).retry_count == 1
    assert (await second.task()).status == "dispatched", "the first one waits for its next try"


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
