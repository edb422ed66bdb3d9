"""The relay: messages arrive at least once, in order, with ids that show repetitions."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from endwell import Context, Fail
from endwell.errors import NotFound, Refused, StaleAttempt, StepFailed, StepTimeout
from endwell.model import commands as c
from endwell.model.content import fingerprint
from endwell.model.task import Task
from endwell.operate import relay as operate_relay
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.service import CURSOR, Relay, relay_lag
from endwell.pmo.relay.sink import SinkError
from endwell.policy.limits import SECOND
from endwell.store.actor import Actor
from tests.patience import PATIENCE_SECONDS
from tests.servers.webhook import Receiver
from tests.support.world import World, eventually

LEASE_SECONDS = 30
QUICKLY: dict[str, object] = {
    "relay.kind": "webhook",
    "relay.retry_seconds": 0.05,
    "relay.pause_seconds": 0.05,
    "relay.poll_seconds": 0.05,
    "relay.tries": 2,
    "relay.batch": 3,
}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def told(store_url: str, receiver: Receiver) -> AsyncIterator[World]:
    """A world whose PMOs send to a webhook, with agents that succeed, fail, and take two turns."""
    async with World(store_url, settings={**QUICKLY, "relay.url": receiver.url}) as world:

        @world.app.agent("clerk")
        async def clerk(ctx: Context, order: Any = None) -> str:
            await ctx.step("price", lambda: 15)
            return "done"

        @world.app.agent("picky", retries=0)
        async def picky(ctx: Context) -> None:
            raise Fail("not today")

        @world.app.agent("asker")
        async def asker(ctx: Context) -> Any:
            return await ctx.tool("oracle", {"q": 1})

        @world.app.agent("drafter", retries=0)
        async def drafter(ctx: Context) -> None:
            await ctx.draft("half of it")
            raise Fail("the other half is missing")

        await world.registered("clerk", "picky", "asker", "drafter")
        yield world


async def relay_of(world: World) -> Relay:
    relay = (await world.supervisor(await world.another_node())).relay
    assert relay is not None
    return relay


async def everything(relay: Relay) -> int:
    """Relay until the log is read to its end, which on PostgreSQL is a moment after the commit."""
    count = 0

    async def is_done() -> bool:
        nonlocal count
        count += await relay.run_once()
        now = await relay._store.now()
        return await relay_lag(relay._store, relay._namespace, now) == 0

    await eventually(is_done, "the relay has told everything")
    return count


async def done(world: World, agent: str, payload: Any = None) -> str:
    """A task that a worker has ended."""
    handle = await world.submitted(agent, payload)
    worker = await world.started_worker()
    while not (await world.store.task(world.namespace, handle.id)).is_ended:
        worker._source.may_have_work = True
        await worker.run_once()
    return handle.id


@pytest.mark.covers("S0.67")
async def test_the_message_of_a_turns_end_has_epoch_deliverable_and_id(
    told: World, receiver: Receiver
) -> None:
    task_id = await done(told, "clerk", {"id": 1})
    await everything(await relay_of(told))
    task = await told.store.task(told.namespace, task_id)
    (ended,) = receiver.of("task")
    assert ended["task_id"] == task_id
    assert (ended["status"], ended["error"], ended["is_final"]) == ("success", None, True)
    assert ended["epoch"] == ended["turn_epoch"] == task.epoch
    assert ended["deliverable_card_id"] == task.deliverable_card
    card = await told.store.card(told.namespace, ended["deliverable_card_id"])
    assert card.content == b'"done"'

    events = {e.event_id: e for e in await told.store.events_of_task(told.namespace, task_id)}
    assert events[ended["event_id"]].type == "turn.ended"
    (message,) = (m for m in receiver.messages if m["data"] == ended)
    assert message["id"] == f"{ended['event_id']}.task"
    assert message["specversion"] == "1.0"
    assert message["subject"] == f"endwell.v1.{told.namespace}.main.evt.agent.clerk.task"
    assert message["source"] == f"/endwell/{told.namespace}"


async def test_states_and_steps_are_sent_in_order(told: World, receiver: Receiver) -> None:
    task_id = await done(told, "clerk")
    await everything(await relay_of(told))
    turn = f"{task_id}.t1"
    said = [
        (m["type"].rpartition(".")[2], m["data"].get("status") or m["data"]["phase"])
        for m in receiver.messages
    ]
    assert said == [
        ("state", "dispatched"),
        ("state", "running"),
        ("step", "completed"),
        ("state", "idle"),
        ("task", "success"),
    ]
    assert {m["data"]["agent_turn_id"] for m in receiver.messages} == {turn}
    (step,) = receiver.of("step")
    assert "price" in step["step_id"]
    assert step["metadata"]["result_type"] == "success"
    assert len({m["id"] for m in receiver.messages}) == len(receiver.messages)


@pytest.mark.covers("S3.28", "S3.32", "S3.39", "S3.40")
async def test_a_recorded_step_is_sent_with_all_its_names(told: World, receiver: Receiver) -> None:
    @told.app.agent("worker")
    async def worker(ctx: Context) -> None:
        await ctx.step("price", lambda: 15)
        await ctx.effect("pay", lambda: "paid")
        with pytest.raises(StepTimeout):
            await ctx.step("slow", asyncio.sleep, 30, timeout=0.05)
        with pytest.raises(StepFailed):
            await ctx.step("hopeless", asyncio.sleep, 30, timeout=0.05, on_timeout="permanent")

    await done(told, "worker")
    await everything(await relay_of(told))
    said = [data for data in receiver.of("step") if data["phase"] in ("completed", "failed")]
    about = [(data["step_id"], data["metadata"]) for data in said]
    assert [(step, each["result_type"], each["events"]) for step, each in about] == [
        ("1:()price#1", "success", ["command_committed", "node_finished"]),
        (
            "1:()pay#1",
            "side_effect_committed",
            ["tool_invocation_finished", "command_committed", "node_finished"],
        ),
        ("1:()slow#1", "retryable_failure", ["node_finished"]),
        ("1:()hopeless#1", "permanent_failure", ["node_finished"]),
    ]


@pytest.mark.covers("S0.9", "S0.67")
async def test_failed_partial_and_cancelled_endings_have_their_own_status(
    told: World, receiver: Receiver
) -> None:
    failed = await done(told, "picky")
    partial = await done(told, "drafter")
    queued = await told.submitted("clerk")
    await queued.cancel("changed my mind")
    await everything(await relay_of(told))
    said = {data["task_id"]: data for data in receiver.of("task")}
    assert (said[failed]["status"], said[failed]["error"]) == ("failed", "agent_gave_up")
    assert "not today" in said[failed]["error_message"]
    assert (said[partial]["status"], said[partial]["task_status"]) == ("failed", "failed")
    assert [said[task]["partial"] for task in (failed, partial, queued.id)] == [False, True, False]
    assert (said[queued.id]["status"], said[queued.id]["agent_turn_id"]) == ("canceled", None)
    assert all(data["deliverable_card_id"] for data in said.values())


@pytest.mark.covers("S0.45", "S0.48", "S0.49", "S0.9")
@pytest.mark.parametrize(("agent", "then"), [("picky", "blocked"), ("clerk", "queued")])
async def test_the_messages_of_a_dispatch_timeout_are_exact(
    told: World, receiver: Receiver, agent: str, then: str
) -> None:
    """A task without a claim goes to a person after its last retry."""
    session = await told.silent_session(agent)
    handle = await told.submitted(agent)
    pmo = await told.supervisor()
    told.clock.advance(2)
    assert await pmo.dispatcher.run_once() == 1
    for _ in range(7):
        told.clock.advance(5)
        await session.beat()
        await pmo.watchdog.run_once()
    task = await handle.task()
    assert task.status == then
    (turn,) = await told.facts(handle, "turn.ended")
    await everything(await relay_of(told))
    idle = receiver.of("state")[-1]
    (ended,) = receiver.of("task")
    assert (idle["status"], idle["error"]) == ("idle", "dispatch_timeout")
    assert (ended["status"], ended["error"]) == ("timeout", "dispatch_timeout")
    assert (ended["reason"], ended["error_message"]) == (
        "dispatch_timeout",
        "no worker took the turn in time",
    )
    assert ended["deliverable_card_id"] == turn.deliverable_card is not None
    assert ended["turn_epoch"] == idle["turn_epoch"] == task.epoch
    (audit,) = receiver.of("step")
    assert (audit["phase"], audit["metadata"]["error"]) == ("failed", "dispatch_timeout")
    assert audit["step_id"] == f"step_reap_{ended['agent_turn_id'][-8:]}"


async def test_a_turn_that_is_held_for_a_person_is_published_as_suspended_with_the_reason(
    told: World, receiver: Receiver
) -> None:
    session = await told.silent_session("clerk", lease_seconds=3600)
    handle = await told.submitted("clerk")
    (offer,) = await told.claimed(session, "clerk")
    await told.store.commit_one(
        c.Block(
            command_id="held",
            namespace=told.namespace,
            task_id=handle.id,
            attempt_id=offer.task.attempt_id,
            reason="effect_unknown",
            effect_key="pay:1",
            owner="ada",
        )
    )

    await everything(await relay_of(told))

    held = receiver.of("state")[-1]
    assert (held["status"], held["error"], held["agent_turn_id"]) == (
        "suspended",
        "effect_unknown",
        f"{handle.id}.t1",
    )
    assert (held["metadata"]["activity"], held["metadata"]["owner"]) == ("awaiting_person", "ada")
    assert receiver.of("task") == []


@pytest.mark.covers("S0.53", "S0.56", "S0.67", "S0.9")
@pytest.mark.parametrize(("agent", "then"), [("picky", "failed"), ("clerk", "queued")])
async def test_the_messages_of_a_reaped_turn_are_exact(
    told: World, receiver: Receiver, agent: str, then: str
) -> None:
    session = await told.silent_session(agent, lease_seconds=3600)
    handle = await told.submitted(agent)
    (offer,) = await told.claimed(session, agent)
    told.clock.advance(301)
    await (await told.supervisor()).watchdog.run_once()
    task = await handle.task()
    assert task.status == then
    (turn,) = await told.facts(handle, "turn.ended")
    await everything(await relay_of(told))
    idle = receiver.of("state")[-1]
    (ended,) = receiver.of("task")
    assert (idle["status"], idle["error"]) == ("idle", "timeout_reaped_by_watchdog")
    assert (ended["status"], ended["error"]) == ("failed", "timeout_reaped_by_watchdog")
    assert ended["reason"] is not None
    assert ended["error_message"] == "the turn made no progress in time"
    assert ended["deliverable_card_id"] == (task.deliverable_card or turn.deliverable_card) is not None
    assert ended["turn_epoch"] == task.epoch == offer.task.epoch + 1, "bumped before anything was told"


async def test_a_suspended_turn_says_what_it_waits_for_and_keeps_its_turn(
    told: World, receiver: Receiver
) -> None:
    handle = await told.submitted("asker")
    worker = await told.started_worker()
    await told.brought_to(worker, handle, "suspended")
    first = await relay_of(told)
    await everything(first)
    await first.close()
    (call,) = await told.store.open_calls(told.namespace)
    await told.client.answer(call.tool_call_id, 42)
    await told.brought_to(worker, handle, "succeeded")
    await everything(await relay_of(told))  # another one, which saw nothing of the turn's beginning
    states = receiver.of("state")
    assert [data["status"] for data in states].count("suspended") == 1
    assert next(d for d in states if d["status"] == "suspended")["metadata"]["waiting_tool_count"] == 1
    assert {data["agent_turn_id"] for data in states} == {f"{handle.id}.t1"}
    assert [data["status"] for data in receiver.of("task")] == ["success"]


@pytest.mark.covers("S0.53", "S0.56", "S0.67", "S0.9")
@pytest.mark.parametrize(("agent", "then"), [("picky", "failed"), ("clerk", "queued")])
async def test_a_reaped_turn_with_a_draft_failed_and_its_deliverable_is_marked_as_partial(
    told: World, receiver: Receiver, agent: str, then: str
) -> None:
    session = await told.silent_session(agent, lease_seconds=3600)
    handle = await told.submitted(agent)
    (offer,) = await told.claimed(session, agent)
    await keep_draft(told, offer.task)
    told.clock.advance(301)
    await (await told.supervisor()).watchdog.run_once()
    assert (await handle.task()).status == then

    await everything(await relay_of(told))

    (ended,) = receiver.of("task")
    assert (ended["status"], ended["partial"]) == ("failed", True)


@pytest.mark.covers("S0.67")
async def test_a_turn_with_a_draft_that_ends_by_is_a_timeout_and_marked_as_partial(
    told: World, receiver: Receiver
) -> None:
    session = await told.silent_session("picky", lease_seconds=3600)
    await told.submitted("picky", deadline=60)
    (offer,) = await told.claimed(session, "picky")
    await keep_draft(told, offer.task)
    told.clock.advance(61)
    await (await told.supervisor()).watchdog.run_once()

    await everything(await relay_of(told))

    (ended,) = receiver.of("task")
    assert (ended["status"], ended["task_status"], ended["partial"]) == ("timeout", "timeout", True)


async def keep_draft(world: World, task: Task) -> None:
    content = b'"half of it"'
    command = c.KeepDraft(
        command_id="draft",
        namespace=task.namespace,
        task_id=task.id,
        attempt_id=task.attempt_id or "",
        content=content,
        content_hash=fingerprint(content),
    )
    (await world.store.commit_one(command)).unwrap()


async def test_an_ending_is_sent_although_its_command_id_appears_again_on_the_page(
    told: World, receiver: Receiver
) -> None:
    session = await told.silent_session("clerk")
    handle = await told.submitted("clerk")
    (offer,) = await told.claimed(session, "clerk")
    finish = c.Finish(
        command_id="finish",
        namespace=told.namespace,
        task_id=offer.task.id,
        attempt_id=offer.task.attempt_id or "",
        result=b"1",
        result_hash="h",
    )
    await told.store.commit_one(finish)
    await told.submitted("clerk")
    with pytest.raises(StaleAttempt):
        await told.store.commit_one(finish)  # its answer was lost: the worker sends it again
    relay = await relay_of(told)
    events = await told.store.events_after(told.namespace, "", 100)
    assert events[-1].event.command_id == "finish"
    relay._settings = msgspec.structs.replace(relay._settings, batch=len(events))

    await everything(relay)

    assert [ended["task_id"] for ended in receiver.of("task")] == [handle.id]


class Dies(BaseException):
    """Stands for the death of the process."""


@pytest.mark.covers("S0.9", "T5")
@pytest.mark.parametrize("when", ["before_send", "during_send", "after_send"])
@pytest.mark.parametrize("page", [1, 2, 3])
async def test_after_a_relay_died_at_any_point_the_next_one_sends_everything(
    told: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, when: str, page: int
) -> None:
    tasks = [await done(told, agent) for agent in ("clerk", "picky", "clerk")]
    victim = await relay_of(told)
    sends = 0
    really_send = victim._sink.send

    async def send(messages: Any) -> None:
        nonlocal sends
        sends += 1
        if sends == page and when == "before_send":
            raise Dies
        await really_send(messages[:1] if sends == page and when == "during_send" else messages)
        if sends == page:
            raise Dies

    monkeypatch.setattr(victim._sink, "send", send)
    with pytest.raises(Dies):
        await everything(victim)
    assert sends == page

    told.clock.advance(LEASE_SECONDS + 1)
    await everything(await relay_of(told))
    assert {data["task_id"] for data in receiver.of("task")} == set(tasks)
    by_id: dict[str, bytes] = {}
    for message in receiver.messages:
        body = repr(message).encode()
        assert by_id.setdefault(message["id"], body) == body, "a repetition says exactly the same"
    assert set(by_id) == await relay_ids(told)


async def relay_ids(world: World) -> set[str]:
    """The ids that a relay without trouble would send, from the beginning."""
    await world.sql("DELETE FROM cursors WHERE namespace = ?", world.namespace)
    relay = await relay_of(world)
    said: list[Outgoing] = []

    class Memory:
        shown = "memory"

        async def send(self, messages: Any) -> None:
            said.extend(messages)

        async def close(self) -> None: ...

    relay._sink = Memory()
    await everything(relay)
    return {message.id for message in said}


async def test_one_relay_at_a_time_and_a_frozen_one_cannot_move_the_cursor(
    told: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await done(told, "clerk")
    first, second = await relay_of(told), await relay_of(told)
    really_send = first._sink.send

    async def slow(messages: Any) -> None:
        assert await second.run_once() == 0, "the cursor is held"
        told.clock.advance(LEASE_SECONDS + 1)  # the first one sleeps in the middle of its batch
        await everything(second)
        await really_send(messages)

    monkeypatch.setattr(first._sink, "send", slow)
    before = len(receiver.messages)
    with pytest.raises(Refused, match="another process follows the log"):
        await everything(first)
    assert len(receiver.messages) > before
    cursor = await told.store.cursor(told.namespace, CURSOR)
    assert cursor is not None
    assert cursor.holder == second.holder
    assert await relay_lag(told.store, told.namespace, await told.store.now()) == 0


async def test_a_refusing_receiver_is_tried_again_and_nothing_is_skipped(
    told: World, receiver: Receiver
) -> None:
    await done(told, "clerk")
    receiver.answer = lambda request: 503
    relay = await relay_of(told)
    told.clock.advance(100)

    async def gave_up() -> bool:
        try:
            return await relay.run_once() > 99
        except SinkError:
            return True

    await eventually(gave_up, "the relay gave up for now")
    assert len(receiver.requests) == 2, "bounded"
    cursor = await told.store.cursor(told.namespace, CURSOR)
    assert cursor is not None
    assert "answered 503" in (cursor.trouble or "")
    assert (await relay_lag(told.store, told.namespace, await told.store.now()) or 0) >= 99 * SECOND

    receiver.answer = lambda request: 204
    other = await relay_of(told)  # the first one has let go: another PMO may have more luck
    await everything(other)
    assert [data["status"] for data in receiver.of("task")] == ["success"]
    cursor = await told.store.cursor(told.namespace, CURSOR)
    assert cursor is not None
    assert cursor.trouble is None


async def test_a_person_may_skip_an_event_that_the_receiver_refuses(told: World, receiver: Receiver) -> None:
    first, second = await done(told, "clerk"), await done(told, "picky")
    events = await told.store.events_of_task(told.namespace, first)
    (poison,) = [event.event_id for event in events if event.type == "turn.ended"]
    receiver.answer = lambda request: 422 if request.messages[0]["id"].startswith(f"{poison}.") else 204
    relay = await relay_of(told)

    async def gave_up() -> bool:
        try:
            await relay.run_once()
        except SinkError:
            return True
        return False

    await eventually(gave_up, "the relay gave up for now")
    status = await operate_relay.status(told.store, told.namespace)
    assert status["trouble"].endswith(f"(event {poison})")
    assert not [data for data in receiver.of("task") if data["task_id"] == second], "nothing is skipped"

    ada = Actor(told.store, told.app.runtime.ids, namespace=told.namespace, name="ada")
    with pytest.raises(NotFound, match="waiting to be sent"):
        await operate_relay.leave_out(ada, "missing.1")
    status = await operate_relay.leave_out(ada, poison)
    assert [(item["event_id"], item["by"]) for item in status["skipped"]] == [(poison, "ada")]

    await everything(await relay_of(told))
    assert [data["status"] for data in receiver.of("task") if data["task_id"] == second] == ["failed"]
    status = await operate_relay.status(told.store, told.namespace)
    assert (status["trouble"], status["lag_seconds"]) == (None, 0)
    assert [item["event_id"] for item in status["skipped"]] == [poison], "it stays written down"
    with pytest.raises(NotFound):
        await operate_relay.leave_out(ada, poison)


async def test_a_repeated_message_is_byte_for_byte_the_same(sqlite_url: str, receiver: Receiver) -> None:
    settings = {**QUICKLY, "relay.url": receiver.url, "relay.batch": 500, "relay.webhook_batch": 500}
    async with World(sqlite_url, settings=settings) as world:
        tries: list[str] = []

        @world.app.agent("stubborn", retries=1, delays=[0])
        async def stubborn(ctx: Context) -> str:
            tries.append("again")
            await ctx.step(f"try{len(tries)}", lambda: 1)
            if len(tries) == 1:
                raise ValueError("once")
            return "done"

        await world.registered("stubborn")
        await done(world, "stubborn")
        relay = await relay_of(world)
        receiver.answer = lambda request: 503
        with pytest.raises(SinkError):
            await relay.run_once()
        receiver.answer = lambda request: 204
        await everything(relay)
    bodies = {request.body for request in receiver.requests}
    assert (len(receiver.requests), len(bodies)) == (3, 1)
    assert [data["agent_turn_id"][-2:] for data in receiver.of("step")[:2]] == ["t1", "t2"]
    assert [data["is_final"] for data in receiver.of("task")[:2]] == [False, True]


async def test_tasks_run_while_the_receiver_is_away(told: World, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    pmo = await told.supervisor()
    assert pmo.relay is not None
    running = told.app.runtime.spawn(pmo.run(), "pmo")
    worker = await told.working()
    handle = await told.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == "done"
    await eventually(lambda: len(receiver.requests) > 2, "the relay tries again and again")
    receiver.answer = lambda request: 204
    await eventually(lambda: bool(receiver.of("task")), "the ending is sent")
    worker.stop()
    pmo.stop()
    await running


async def test_a_batch_is_signed(
    sqlite_url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
    settings = {**QUICKLY, "relay.url": receiver.url, "relay.secret": secret, "relay.webhook_batch": 50}
    with caplog.at_level(logging.DEBUG):
        async with World(sqlite_url, settings={**settings, "relay.batch": 50}) as world:

            @world.app.agent("clerk")
            async def clerk() -> str:
                return "done"

            await world.registered("clerk")
            await done(world, "clerk")
            await everything(await relay_of(world))
    (request,) = receiver.requests
    assert request.headers["content-type"].startswith("application/cloudevents-batch+json")
    assert len(request.messages) == 4
    signed = (
        f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    )
    mac = base64.b64encode(hmac.digest(b"0123456789abcdef", signed, hashlib.sha256)).decode()
    assert request.headers["webhook-signature"] == f"v1,{mac}"
    assert secret not in caplog.text


async def test_only_chosen_messages_are_sent_and_only_from_now_on(
    sqlite_url: str, receiver: Receiver
) -> None:
    chosen = {"relay.url": receiver.url, "relay.events": ["task"], "relay.start": "now"}
    async with World(sqlite_url, settings={**QUICKLY, **chosen}) as world:

        @world.app.agent("clerk")
        async def clerk() -> str:
            return "done"

        await world.registered("clerk")
        await done(world, "clerk")
        relay = await relay_of(world)
        assert await relay.run_once() == 0
        second = await done(world, "clerk")
        await everything(relay)
    assert [message["data"]["task_id"] for message in receiver.messages] == [second]
    assert [message["type"] for message in receiver.messages] == ["endwell.v1.evt.agent.task"]


async def test_moving_the_cursor_is_not_part_of_the_record(told: World) -> None:
    task_id = await done(told, "clerk")
    before = await told.store.events_of_task(told.namespace, task_id)
    await everything(await relay_of(told))
    assert await told.store.events_of_task(told.namespace, task_id) == before
