"""The plain connection to a Redis server: in step whatever happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from endwell.runtime.redis_line import Address, LineLost, RedisLine, error_type, plain_address
from tests.servers.small import ValkeyServer
from tests.support.world import eventually


def line_to(url: str, seconds: float | None = 5.0, **options: Any) -> RedisLine:
    address = plain_address(url)
    assert address is not None
    return RedisLine(address, seconds=seconds, **options)


@pytest.fixture
async def line(redis_url: str) -> AsyncIterator[RedisLine]:
    line = line_to(redis_url)
    yield line
    line.close()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", Address("localhost", 6379, "", "", 0)),
        ("redis://h:7/3", Address("h", 7, "", "", 3)),
        ("redis://:p%40ss@h", Address("h", 6379, "", "p@ss", 0)),
        ("redis://me:secret@[::1]:7/", Address("::1", 7, "me", "secret", 0)),
    ],
)
def test_a_plain_address_is_read(url: str, address: Address) -> None:
    assert plain_address(url) == address


@pytest.mark.parametrize(
    "url", ["rediss://h", "unix:///tmp/s", "redis://h?protocol=3", "redis://h/x", "redis://h:port", "h:1"]
)
def test_what_needs_more_than_a_socket_is_left_to_the_library(url: str) -> None:
    assert plain_address(url) is None


async def test_answers_come_in_the_order_of_the_questions(line: RedisLine) -> None:
    asked = [line.ask([("ECHO", number), ("ECHO", b"\xff\x00")]) for number in range(50)]
    answers = await asyncio.gather(*asked)
    assert answers == [[str(number).encode(), b"\xff\x00"] for number in range(50)]


async def test_an_error_stands_among_the_answers(line: RedisLine) -> None:
    first, refused, last = await line.ask([("ECHO", 1), ("NOSUCH",), ("ECHO", 2)])
    assert (first, last) == (b"1", b"2")
    assert isinstance(refused, error_type())


async def test_who_does_not_wait_for_an_answer_takes_nobody_elses(line: RedisLine) -> None:
    await line.ask([("PING",)])
    impatient = asyncio.ensure_future(line.ask([("ECHO", "dropped")]))
    patient = asyncio.ensure_future(line.ask([("ECHO", "kept")]))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == [b"kept"]


async def test_a_command_that_cannot_be_sent_leaves_the_line_in_step(line: RedisLine) -> None:
    await line.ask([("PING",)])
    with pytest.raises(UnicodeEncodeError):
        await line.ask([("ECHO", "\ud800")])
    assert await line.ask([("ECHO", "next")]) == [b"next"]


async def test_a_read_that_nobody_waits_for_any_more_is_ended_at_the_server(
    own_valkey: ValkeyServer,
) -> None:
    reading, asking = line_to(own_valkey.url, seconds=None), line_to(own_valkey.url)
    blocked = asyncio.ensure_future(reading.ask([("BLPOP", "nothing", 0)]))

    def waits(expected: bool) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            (listed,) = await asking.ask([("CLIENT", "LIST")])
            return (b"cmd=blpop" in listed) is expected

        return look

    await eventually(waits(True), "the server knows of the read")
    blocked.cancel()
    await eventually(waits(False), "the server has forgotten it")
    assert await reading.ask([("PING",)]) == [b"PONG"], "and the line is made anew"
    reading.close()
    asking.close()


async def test_a_lost_line_tells_whoever_waits_and_comes_back(own_valkey: ValkeyServer) -> None:
    line = line_to(own_valkey.url, seconds=None)
    await line.ask([("PING",)])
    blocked = asyncio.ensure_future(line.ask([("BLPOP", "nothing", 0)]))
    await asyncio.sleep(0)
    await asyncio.to_thread(own_valkey.kill)
    with pytest.raises(LineLost):
        await blocked
    with pytest.raises(LineLost):
        await line.ask([("PING",)])
    await asyncio.to_thread(own_valkey.start)
    assert await line.ask([("PING",)]) == [b"PONG"]
    line.close()


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"SETNAME\r\n$7\r\nendwell\r\n")
        writer.write(b"+OK\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    line = line_to(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", seconds=0.05)
    with pytest.raises(LineLost, match="does not answer"):
        await line.ask([("PING",)])
    server.close()


async def test_what_is_no_answer_ends_the_line() -> None:
    async def talk_rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk_rubbish, "127.0.0.1", 0)
    line = line_to(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(LineLost, match="something else than an answer"):
        await line.ask([("PING",)])
    server.close()


async def test_user_password_and_database_are_told_to_the_server(own_valkey: ValkeyServer) -> None:
    own = line_to(own_valkey.url)
    await own.ask([("ACL", "SETUSER", "me", "on", ">se cret", "+@all", "~*")])
    inside = line_to(own_valkey.url.replace("//", "//me:se%20cret@") + "/5")
    who, listed = await inside.ask([("ACL", "WHOAMI"), ("CLIENT", "INFO")])
    assert who == b"me"
    assert b" db=5 " in listed
    assert b" name=endwell " in listed
    for wrong in ("me:wrong", "me"):
        outside = line_to(own_valkey.url.replace("//", f"//{wrong}@"))
        with pytest.raises(LineLost, match="WRONGPASS"):
            await outside.ask([("PING",)])
        outside.close()
    for each in (own, inside):
        each.close()
