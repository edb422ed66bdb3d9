"""The relay on real NATS and Valkey servers, which are killed and come back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from redis.asyncio import Redis

from endwell.doorbell.nats import flush_all
from endwell.errors import BadSetting
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.nats import NatsSink
from endwell.pmo.relay.sink import SinkError
from tests.patience import PATIENCE_SECONDS
from tests.pmo.relaying import QUICKLY, done, everything, relay_of
from tests.servers.attentive import AttentiveNats
from tests.servers.small import NatsServer, SmallServer, ValkeyServer
from tests.support.world import World, eventually


@asynccontextmanager
async def worked(store: str, kind: str, server: str = "") -> AsyncIterator[World]:
    """A world with one agent, whose PMOs send to this server."""
    told = {**QUICKLY, "relay.kind": kind, "relay.url": server, "doorbell.kind": "store"}
    async with World(store, settings=told) as world:

        @world.app.agent("clerk")
        async def clerk() -> str:
            return "done"

        await world.registered("clerk")
        yield world


def redis_at(server: SmallServer) -> Any:
    return Redis.from_url(server.url)


async def test_messages_go_out_on_nats_subjects(sqlite_url: str, own_nats: NatsServer) -> None:
    listener = await nats.connect(own_nats.url)
    heard: list[Any] = []

    async def hear(message: Any) -> None:
        heard.append(message)

    await listener.subscribe("endwell.v1.*.main.evt.agent.clerk.*", cb=hear)
    await flush_all(listener, 10)
    async with worked(sqlite_url, "nats", own_nats.url) as world:
        task_id = await done(world, "clerk")
        await everything(await relay_of(world))
        await eventually(lambda: len(heard) == 4, "all four messages are there")
    last = json.loads(heard[-1].data)
    assert heard[-1].subject == last["subject"] == f"endwell.v1.{world.namespace}.main.evt.agent.clerk.task"
    assert (last["data"]["task_id"], last["data"]["status"]) == (task_id, "success")
    assert heard[-1].headers["Nats-Msg-Id"] == last["id"]
    await listener.close()


@pytest.mark.covers("T5")
async def test_a_sent_message_on_a_plain_subject_has_reached_the_server() -> None:
    """Else the cursor would move past messages that are lost with the connection."""
    async with AttentiveNats() as server:
        sink = NatsSink(server.url, is_stream=False, timeout_seconds=10)
        await sink.send([Outgoing("endwell.v1.default.main.evt.agent.clerk.task", "e.1.task", b"{}")])
        assert server.has_confirmed("HPUB")
        await sink.close()


async def test_a_jetstream_keeps_a_repeated_message_once(sqlite_url: str, own_nats: NatsServer) -> None:
    await _with_stream(own_nats.url)
    async with worked(sqlite_url, "jetstream", own_nats.url) as world:
        await done(world, "clerk")
        first = await relay_of(world)
        await everything(first)
        await first.close()
        await world.sql("UPDATE cursors SET position = ''")  # as if it had died before it noted anything
        await everything(await relay_of(world))
        assert len(await _kept("jetstream", own_nats, world.namespace)) == 4


async def test_messages_go_out_on_redis_channels(sqlite_url: str, own_valkey: ValkeyServer) -> None:
    client = redis_at(own_valkey)
    pubsub = client.pubsub()
    await pubsub.psubscribe("endwell.v1.*.evt.agent.*.task")
    await pubsub.get_message(timeout=PATIENCE_SECONDS)
    async with worked(sqlite_url, "redis", own_valkey.url) as world:
        task_id = await done(world, "clerk")
        await everything(await relay_of(world))
        message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=PATIENCE_SECONDS)
    assert json.loads(message["data"])["data"]["task_id"] == task_id
    await pubsub.aclose()
    await client.aclose()


@pytest.mark.parametrize("kind", ["jetstream", "redis_stream"])
async def test_after_a_server_restart_every_message_has_arrived(
    sqlite_url: str, kind: str, request: pytest.FixtureRequest
) -> None:
    server: SmallServer = request.getfixturevalue("own_nats" if kind == "jetstream" else "own_valkey")
    if kind == "jetstream":
        await _with_stream(server.url)
    async with worked(sqlite_url, kind, server.url) as world:
        relay = await relay_of(world)
        await done(world, "clerk")
        await everything(relay)
        assert len(await _kept(kind, server, world.namespace)) == 4
        server.kill()
        await done(world, "clerk")
        with pytest.raises(SinkError):
            await relay.run_once()
        server.start()
        await everything(relay)
        kept = await _kept(kind, server, world.namespace)
    assert len(set(kept)) == 8, "each of them, and each under its own id"


async def _with_stream(url: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().add_stream(name="evt", subjects=["endwell.v1.*.*.evt.>"])
    await client.close()


async def _kept(kind: str, server: SmallServer, namespace: str) -> list[str]:
    """The ids of the messages that a stream keeps."""
    if kind == "redis_stream":
        client = redis_at(server)
        entries = await client.xrange(f"endwell.v1.{namespace}.evt")
        await client.aclose()
        assert all(json.loads(fields[b"event"])["id"] == fields[b"id"].decode() for _, fields in entries)
        return [fields[b"id"].decode() for _, fields in entries]
    listener = await nats.connect(server.url)
    stream = listener.jetstream()
    count = (await stream.stream_info("evt")).state.messages
    found = [await stream.get_msg("evt", seq) for seq in range(1, count + 1)]
    await listener.close()
    return [json.loads(message.data or b"")["id"] for message in found]


@pytest.mark.parametrize("kind", ["nats", "redis", "webhook"])
async def test_a_relay_without_a_url_is_refused_at_start(sqlite_url: str, kind: str) -> None:
    async with worked(sqlite_url, kind) as world:
        with pytest.raises(BadSetting, match=r"relay\.url"):
            await relay_of(world)
