"""The behaviour of a Redis server that the product relies on, of a real and of the simulated one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from endwell.redis_client import Connect, RedisClient, Refusal
from endwell.runtime import SystemClock
from endwell.runtime.base import Runtime
from endwell.streams.protocol import Names
from endwell.streams.task_streams import TaskStreams
from endwell.testing.redis.server import RedisNetwork, SimulatedRedis, SimulatedRedisClient
from tests.patience import PATIENCE_SECONDS
from tests.support.world import eventually

LONG_BLOCK_MS = int(2000 * PATIENCE_SECONDS)
"""A read that nothing ends would wait longer than the test does."""


class Place:
    """A server, by its lines, and keys on it that are this test's own."""

    def __init__(self, connect: Connect, prefix: str, is_waited: Callable[[], Awaitable[bool]]) -> None:
        self.is_waited = is_waited
        self.line: RedisClient = connect()
        self.waiting: RedisClient = connect(blocking=True)
        self.stream = f"{prefix}stream"
        self.other = f"{prefix}other"
        self.group = "g"

    async def ask(self, *words: Any) -> Any:
        return await self.line.ask(*words)

    async def add(self, value: str = "v") -> str:
        return str((await self.ask("XADD", self.stream, "*", "f", value)).decode())

    async def founded(self) -> None:
        await self.ask("XGROUP", "CREATE", self.stream, self.group, "0", "MKSTREAM")

    def reading(self, consumer: str, *options: Any) -> tuple[Any, ...]:
        return ("XREADGROUP", "GROUP", self.group, consumer, *options, "STREAMS", self.stream, ">")

    async def read(self, consumer: str, count: int = 10) -> list[str]:
        answer = await self.ask(*self.reading(consumer, "COUNT", count))
        return [each.decode() for _, entries in answer or () for each, _ in entries]

    async def pending(self, *words: Any) -> list[tuple[str, str, int]]:
        rows = await self.ask("XPENDING", self.stream, self.group, *(words or ("-", "+", 100)))
        return [(row[0].decode(), row[1].decode(), row[3]) for row in rows]

    async def grown_old(self, consumer: str, *ids: str) -> None:
        words = ("XCLAIM", self.stream, self.group, consumer, 0, *ids, "IDLE", 60_000, "JUSTID")
        await self.ask(*words)


@pytest.fixture(params=("real", "simulated"))
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    prefix = f"contract:{request.node.name}:"
    if request.param == "simulated":
        runtime = Runtime.system()
        network = RedisNetwork(SimulatedRedis(lambda: SystemClock().now_us() // 1000))

        def simulated(*, blocking: bool = False) -> RedisClient:
            return SimulatedRedisClient(network, runtime, "test", blocking=blocking)

        async def somebody_waits_there() -> bool:
            return bool(network.server.waiting)

        yield Place(simulated, prefix, somebody_waits_there)
        return
    url = request.getfixturevalue("redis_url")

    def real(*, blocking: bool = False) -> RedisClient:
        return RedisClient(url, blocking=blocking)

    async def somebody_waits() -> bool:
        listed: bytes = await found.ask("CLIENT", "LIST")
        return any(b" cmd=xreadgroup" in line and b" flags=b" in line for line in listed.splitlines())

    found = Place(real, prefix, somebody_waits)
    yield found
    await RedisClient(url).remove_keys(prefix)
    await found.line.close()
    await found.waiting.close()


async def refused(place: Place, *words: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await place.ask(*words)
    return caught.value.code


async def test_each_entry_is_delivered_once_and_in_order(place: Place) -> None:
    await place.founded()
    ids = [await place.add(str(number)) for number in range(5)]
    assert await place.read("a", 2) == ids[:2]
    assert await place.read("b") == ids[2:]
    assert await place.read("a") == []
    assert await place.pending() == [(each, "a" if each in ids[:2] else "b", 1) for each in ids]


async def test_fields_are_delivered_as_they_were_sent(place: Place) -> None:
    await place.founded()
    await place.ask("XADD", place.stream, "*", "f", b"\xff\x00", "number", 7)
    answer = await place.ask(*place.reading("a"))
    assert [raw for _, entries in answer for _, raw in entries] == [[b"f", b"\xff\x00", b"number", b"7"]]
    assert answer[0][0] == place.stream.encode()


async def test_group_exists_once_and_reading_needs_it(place: Place) -> None:
    assert await refused(place, *place.reading("a")) == "NOGROUP"
    assert await refused(place, "XGROUP", "CREATE", place.stream, "g", "0") == "ERR"
    await place.founded()
    assert await refused(place, "XGROUP", "CREATE", place.stream, "g", "0", "MKSTREAM") == "BUSYGROUP"
    assert await place.ask("XGROUP", "DESTROY", place.stream, "g") == 1
    assert await refused(place, *place.reading("a", "BLOCK", 20)) == "NOGROUP"
    assert await refused(place, "XPENDING", place.stream, "g") == "NOGROUP"
    assert await refused(place, "XAUTOCLAIM", place.stream, "g", "a", 0, "0-0") == "NOGROUP"
    assert await place.ask("XACK", place.stream, "g", "1-1") == 0


async def test_blocking_read_waits_for_an_entry_and_ends_in_time(place: Place) -> None:
    await place.founded()
    assert await place.waiting.ask(*place.reading("a", "COUNT", 5, "BLOCK", 20)) is None
    reading = asyncio.ensure_future(
        place.waiting.ask(*place.reading("a", "COUNT", 5, "BLOCK", LONG_BLOCK_MS))
    )
    await eventually(place.is_waited, "the read waits")
    entry = await place.add()
    answer = await asyncio.wait_for(reading, PATIENCE_SECONDS)
    assert [each.decode() for _, entries in answer for each, _ in entries] == [entry]


@pytest.mark.parametrize("loss", ["DEL", "DESTROY"])
async def test_blocking_read_ends_when_its_stream_is_removed(place: Place, loss: str) -> None:
    await place.founded()
    await place.add()
    await place.read("a")
    reading = asyncio.ensure_future(place.waiting.ask(*place.reading("a", "BLOCK", LONG_BLOCK_MS)))
    await eventually(place.is_waited, "the read waits")
    words = ("DEL", place.stream) if loss == "DEL" else ("XGROUP", "DESTROY", place.stream, "g")
    assert await place.ask(*words) == 1
    with pytest.raises(Refusal) as caught:
        await asyncio.wait_for(reading, PATIENCE_SECONDS)
    assert caught.value.code in ("NOGROUP", "UNBLOCKED")


async def test_acknowledged_entries_are_not_pending_and_deleted_ones_still_are(place: Place) -> None:
    await place.founded()
    one, two, three = [await place.add() for _ in range(3)]
    await place.read("a")
    assert await place.line.ask_all(
        [("XACK", place.stream, "g", one, "9-9"), ("XDEL", place.stream, one, two, "9-9")]
    ) == [1, 2]
    assert [each for each, *_ in await place.pending()] == [two, three]
    assert await place.ask("XLEN", place.stream) == 1


async def test_claim_changes_holder_and_idle_time_and_with_justid_counts_no_delivery(
    place: Place,
) -> None:
    await place.founded()
    entry = await place.add()
    await place.read("a")
    assert await place.ask("XCLAIM", place.stream, "g", "b", 10_000, entry) == []
    await place.grown_old("a", entry)
    assert await place.pending("IDLE", 50_000, "-", "+", 10) == [(entry, "a", 1)]
    assert await place.ask("XCLAIM", place.stream, "g", "b", 10_000, entry, "JUSTID") == [entry.encode()]
    assert await place.pending("-", "+", 10, "b") == [(entry, "b", 1)]
    assert await place.pending("IDLE", 50_000, "-", "+", 10) == []
    (claimed,) = await place.ask("XCLAIM", place.stream, "g", "c", 0, entry)
    assert claimed == [entry.encode(), [b"f", b"v"]]
    assert await place.pending() == [(entry, "c", 2)]
    assert await place.ask("XCLAIM", place.stream, "g", "c", 0, "9-9") == []


async def test_autoclaim_has_a_cursor_and_names_deleted_entries(place: Place) -> None:
    await place.founded()
    ids = [await place.add() for _ in range(5)]
    await place.read("a")
    await place.grown_old("a", *ids[:4])
    await place.ask("XDEL", place.stream, ids[1])
    words = ("XAUTOCLAIM", place.stream, "g", "b", 30_000)
    cursor, entries, deleted = await place.ask(*words, "0-0", "COUNT", 2)
    assert cursor.decode() == ids[2]
    cursor, more, none = await place.ask(*words, cursor, "COUNT", 10)
    assert cursor == b"0-0"
    assert [each[0].decode() for each in entries + more] == [ids[0], ids[2], ids[3]]
    assert [each.decode() for each in deleted + none] == [ids[1]]
    assert await place.pending() == [
        (ids[0], "b", 2),
        (ids[2], "b", 2),
        (ids[3], "b", 2),
        (ids[4], "a", 1),
    ]


async def test_claim_of_a_deleted_entry_forgets_it(place: Place) -> None:
    await place.founded()
    entry = await place.add()
    await place.read("a")
    await place.ask("XDEL", place.stream, entry)
    assert await place.ask("XCLAIM", place.stream, "g", "b", 0, entry) == []
    assert await place.pending() == []


async def test_pending_entries_are_listed_by_page_and_summed_up(place: Place) -> None:
    await place.founded()
    assert await place.ask("XPENDING", place.stream, "g") == [0, None, None, None]
    ids = [await place.add() for _ in range(3)]
    await place.read("a", 2)
    await place.read("b")
    first, last = ids[0].encode(), ids[2].encode()
    assert await place.ask("XPENDING", place.stream, "g") == [3, first, last, [[b"a", b"2"], [b"b", b"1"]]]
    assert [each for each, *_ in await place.pending(ids[1], "+", 1)] == [ids[1]]


async def test_streams_are_trimmed_by_length_and_by_id(place: Place) -> None:
    ids = [await place.add() for _ in range(6)]
    assert await place.ask("XTRIM", place.stream, "MAXLEN", "=", 4) == 2
    assert await place.ask("XTRIM", place.stream, "MINID", ids[4]) == 2
    assert [each.decode() for each, _ in await place.ask("XRANGE", place.stream, "-", "+")] == ids[4:]
    assert len(await place.ask("XRANGE", place.stream, ids[4], ids[4])) == 1
    assert await place.ask("XTRIM", place.other, "MAXLEN", "~", 4) == 0


async def test_groups_and_consumers_are_listed_and_deleted(place: Place) -> None:
    assert await refused(place, "XINFO", "GROUPS", place.stream) == "ERR"
    await place.founded()
    entry = await place.add()
    await place.read("a")
    await place.read("b")
    rows = await place.ask("XINFO", "CONSUMERS", place.stream, "g")
    told = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    assert {row[b"name"]: row[b"pending"] for row in told} == {b"a": 1, b"b": 0}
    assert all(0 <= row[b"idle"] < 5000 for row in told)
    (row,) = await place.ask("XINFO", "GROUPS", place.stream)
    group = dict(zip(row[::2], row[1::2], strict=True))
    assert (group[b"name"], group[b"last-delivered-id"]) == (b"g", entry.encode())
    assert await place.ask("XGROUP", "DELCONSUMER", place.stream, "g", "a") == 1
    assert await place.pending() == []


async def test_keys_are_set_once_expire_and_are_removed(place: Place) -> None:
    key = place.other
    assert await place.ask("SET", key, "one", "NX", "PX", 60_000) == b"OK"
    assert await place.ask("SET", key, "two", "NX", "PX", 60_000) is None
    assert await place.ask("MGET", key, "nothing") == [b"one", None]
    assert await place.ask("GETRANGE", key, 0, 1) == b"on"
    assert await place.ask("GETRANGE", "nothing", 0, 1) == b""
    assert await place.ask("PEXPIRE", key, 20) == 1

    async def is_gone() -> bool:
        return await place.ask("GET", key) is None

    await eventually(is_gone, "the key has lapsed")
    assert await place.ask("PEXPIRE", key, 20) == 0
    await place.ask("SET", key, "three", "EX", 60)
    assert await place.ask("DEL", key, "nothing") == 1


async def test_hashes_and_sets_exist_while_they_have_members(place: Place) -> None:
    assert await place.ask("HSET", place.other, "a", "1", "b", "2") == 2
    assert await place.ask("HMGET", place.other, "b", "c") == [b"2", None]
    assert await place.ask("HLEN", place.other) == 2
    assert await place.ask("HDEL", place.other, "a", "b", "c") == 2
    assert await place.ask("HLEN", place.other) == 0
    assert await place.ask("EXISTS", place.other) == 0
    assert await place.ask("SADD", place.other, "a", "b", "a") == 2
    assert sorted(await place.ask("SRANDMEMBER", place.other, 5)) == [b"a", b"b"]
    assert len(await place.ask("SRANDMEMBER", place.other, 1)) == 1
    assert await place.ask("SRANDMEMBER", place.stream, 5) == []
    assert await place.ask("SREM", place.other, "a", "c") == 1


async def test_all_of_many_commands_are_executed_and_a_refusal_is_raised(place: Place) -> None:
    await place.ask("SET", place.other, "text")
    for atomic in (False, True):
        with pytest.raises(Refusal) as caught:
            await place.line.ask_all(
                [("XADD", place.other, "*", "f", "v"), ("XADD", place.stream, "*", "f", "v")], atomic=atomic
            )
        assert caught.value.code == "WRONGTYPE"
    assert await place.ask("XLEN", place.stream) == 2
    assert await refused(place, "NOSUCH", "thing") == "ERR"
    with pytest.raises(Refusal):
        await place.line.ask_all([("XADD", place.stream, "*", "f", "v"), ("NOSUCH",)], atomic=True)
    assert await place.ask("XLEN", place.stream) == 2
    added, count = await place.line.ask_all(
        [("XADD", place.stream, "*", "f", "v"), ("XLEN", place.stream)], atomic=True
    )
    assert (bool(added), count) == (True, 3)


async def test_scripts_compare_and_write_in_one_step(place: Place) -> None:
    names = Names(f"{place.stream}:")
    streams = TaskStreams(place.line, names)
    await place.ask("SET", names.results_cursor, "5")
    two = [("task_id", "a"), ("task_id", "b", "status", "failed")]
    assert await streams.publish_results(two, after="5", cursor="9")
    assert not await streams.publish_results(two, after="5", cursor="9"), "the cursor has moved"
    assert await place.ask("GET", names.results_cursor) == b"9"
    found = await place.ask("XRANGE", names.result, "-", "+")
    assert [fields for _, fields in found] == [
        [b"task_id", b"a"],
        [b"task_id", b"b", b"status", b"failed"],
    ]

    assert await streams.dead_letters.publish("a", ("task_id", "a"))
    assert not await streams.dead_letters.publish("a", ("task_id", "a")), "it has a mark"
    ((letter_id, _),) = await place.ask("XRANGE", names.dlq, "-", "+")
    assert await place.ask("HMGET", names.dead_letters, "a") == [letter_id]
