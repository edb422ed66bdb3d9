"""The inbox: the truth of what was sent to an agent, whichever process dies on the way."""

from __future__ import annotations

from typing import Any

import pytest

from endwell import AsyncHandle
from endwell.machine.table import TABLE
from endwell.model import commands as c
from endwell.model.message import INBOX_FIELDS
from endwell.operate import inbox
from tests.machine.planting import change_rule
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World
from tests.worker.inbox_messages import LONG, offered, report_timeout, row, rows, suspend_for_a_tool, watch


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
        await clerk.store.commit_one(suspend_for_a_tool(clerk, offer.task))
    poisoned, healthy = handles
    kind: type[c.Command] = c.Deliver
    usual = TABLE[kind].then

    def broken(task: Any, *arguments: Any) -> Any:
        if task.id == poisoned.id:
            raise ZeroDivisionError("a defect")
        return usual(task, *arguments)

    change_rule(monkeypatch, kind, then=broken)
    for handle in handles:
        await clerk.store.commit_one(report_timeout(clerk, handle))
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
