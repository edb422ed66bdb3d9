"""The relay delivers: messages arrive at least once, in order, with ids that show repetitions."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from typing import Any

import msgspec
import pytest

from endwell import Context
from endwell.errors import NotFound, Refused, StaleAttempt
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.operate import relay as operate_relay
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.service import CURSOR, relay_lag
from endwell.pmo.relay.sink import SinkError
from endwell.store.actor import Actor
from tests.patience import PATIENCE_SECONDS
from tests.pmo.relaying import QUICKLY, done, everything, relay_of
from tests.servers.webhook import Receiver
from tests.support.world import World, eventually

LEASE_SECONDS = 30


async def test_an_ending_is_sent_although_its_command_id_appears_again_on_the_page(
    relayed: World, receiver: Receiver
) -> None:
    session = await relayed.silent_session("clerk")
    handle = await relayed.submitted("clerk")
    (offer,) = await relayed.claimed(session, "clerk")
    finish = c.Finish(
        command_id="finish",
        namespace=relayed.namespace,
        task_id=offer.task.id,
        attempt_id=offer.task.attempt_id or "",
        result=b"1",
        result_hash="h",
    )
    await relayed.store.commit_one(finish)
    await relayed.submitted("clerk")
    with pytest.raises(StaleAttempt):
        await relayed.store.commit_one(finish)  # its answer was lost: the worker sends it again
    relay = await relay_of(relayed)
    events = await relayed.store.events_after(relayed.namespace, "", 100)
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
    relayed: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, when: str, page: int
) -> None:
    tasks = [await done(relayed, agent) for agent in ("clerk", "picky", "clerk")]
    victim = await relay_of(relayed)
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

    relayed.clock.advance(LEASE_SECONDS + 1)
    await everything(await relay_of(relayed))
    assert {data["task_id"] for data in receiver.of("task")} == set(tasks)
    by_id: dict[str, bytes] = {}
    for message in receiver.messages:
        body = repr(message).encode()
        assert by_id.setdefault(message["id"], body) == body, "a repetition says exactly the same"
    assert set(by_id) == await relay_ids(relayed)


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
    relayed: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await done(relayed, "clerk")
    first, second = await relay_of(relayed), await relay_of(relayed)
    really_send = first._sink.send

    async def slow(messages: Any) -> None:
        assert await second.run_once() == 0, "the cursor is held"
        relayed.clock.advance(LEASE_SECONDS + 1)  # the first one sleeps in the middle of its batch
        await everything(second)
        await really_send(messages)

    monkeypatch.setattr(first._sink, "send", slow)
    before = len(receiver.messages)
    with pytest.raises(Refused, match="another process follows the log"):
        await everything(first)
    assert len(receiver.messages) > before
    cursor = await relayed.store.cursor(relayed.namespace, CURSOR)
    assert cursor is not None
    assert cursor.holder == second.holder
    assert await relay_lag(relayed.store, relayed.namespace, await relayed.store.now()) == 0


async def test_a_refusing_receiver_is_tried_again_and_nothing_is_skipped(
    relayed: World, receiver: Receiver
) -> None:
    await done(relayed, "clerk")
    receiver.answer = lambda request: 503
    relay = await relay_of(relayed)
    relayed.clock.advance(100)

    async def gave_up() -> bool:
        try:
            return await relay.run_once() > 99
        except SinkError:
            return True

    await eventually(gave_up, "the relay gave up for now")
    assert len(receiver.requests) == 2, "bounded"
    cursor = await relayed.store.cursor(relayed.namespace, CURSOR)
    assert cursor is not None
    assert "answered 503" in (cursor.trouble or "")
    assert (await relay_lag(relayed.store, relayed.namespace, await relayed.store.now()) or 0) >= 99 * SECOND

    receiver.answer = lambda request: 204
    other = await relay_of(relayed)  # the first one has let go: another PMO may have more luck
    await everything(other)
    assert [data["status"] for data in receiver.of("task")] == ["success"]
    cursor = await relayed.store.cursor(relayed.namespace, CURSOR)
    assert cursor is not None
    assert cursor.trouble is None


async def test_a_person_may_skip_an_event_that_the_receiver_refuses(
    relayed: World, receiver: Receiver
) -> None:
    first, second = await done(relayed, "clerk"), await done(relayed, "picky")
    events = await relayed.store.events_of_task(relayed.namespace, first)
    (poison,) = [event.event_id for event in events if event.type == "turn.ended"]
    receiver.answer = lambda request: 422 if request.messages[0]["id"].startswith(f"{poison}.") else 204
    relay = await relay_of(relayed)

    async def gave_up() -> bool:
        try:
            await relay.run_once()
        except SinkError:
            return True
        return False

    await eventually(gave_up, "the relay gave up for now")
    status = await operate_relay.status(relayed.store, relayed.namespace)
    assert status["trouble"].endswith(f"(event {poison})")
    assert not [data for data in receiver.of("task") if data["task_id"] == second], "nothing is skipped"

    ada = Actor(relayed.store, relayed.app.runtime.ids, namespace=relayed.namespace, name="ada")
    with pytest.raises(NotFound, match="waiting to be sent"):
        await operate_relay.leave_out(ada, "missing.1")
    status = await operate_relay.leave_out(ada, poison)
    assert [(item["event_id"], item["by"]) for item in status["skipped"]] == [(poison, "ada")]

    await everything(await relay_of(relayed))
    assert [data["status"] for data in receiver.of("task") if data["task_id"] == second] == ["failed"]
    status = await operate_relay.status(relayed.store, relayed.namespace)
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


async def test_tasks_run_while_the_receiver_is_away(relayed: World, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    pmo = await relayed.supervisor()
    assert pmo.relay is not None
    running = relayed.app.runtime.spawn(pmo.run(), "pmo")
    worker = await relayed.working()
    handle = await relayed.submitted("clerk")
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


async def test_moving_the_cursor_is_not_part_of_the_record(relayed: World) -> None:
    task_id = await done(relayed, "clerk")
    before = await relayed.store.events_of_task(relayed.namespace, task_id)
    await everything(await relay_of(relayed))
    assert await relayed.store.events_of_task(relayed.namespace, task_id) == before
