"""The Redis client: answers stay in step with commands, and a lost server is reported at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from endwell import redis_client
from endwell.redis_client import RedisClient, Refusal, Unreachable
from tests.servers.small import ValkeyServer
from tests.support.world import eventually


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[RedisClient]:
    client = RedisClient(redis_url)
    yield client
    await client.close()


async def test_concurrent_commands_get_their_own_answers(client: RedisClient) -> None:
    asked = [client.ask_all([("ECHO", number), ("ECHO", b"\xff\x00")]) for number in range(50)]
    answers = await asyncio.gather(*asked)
    assert answers == [[str(number).encode(), b"\xff\x00"] for number in range(50)]


async def test_one_refused_command_of_many_is_raised_and_the_client_stays_in_step(
    client: RedisClient,
) -> None:
    with pytest.raises(Refusal, match="wrong number"):
        await client.ask_all([("PING",), ("GET",), ("ECHO", "x")])
    assert await client.ask_all([("ECHO", 1), ("ECHO", b"\xff")]) == [b"1", b"\xff"]
    with pytest.raises(Refusal):
        await client.ask_all([("ECHO", "x"), ("GET",)], atomic=True)
    assert await client.ask_all([("ECHO", "y")], atomic=True) == [b"y"]


async def test_cancelled_command_leaves_its_answer_to_nobody_else(client: RedisClient) -> None:
    await client.ask("PING")
    cancelled = asyncio.ensure_future(client.ask("ECHO", "cancelled"))
    other = asyncio.ensure_future(client.ask("ECHO", "kept"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await other == b"kept"
    assert [await client.ask("ECHO", number) for number in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_command_that_cannot_be_encoded_leaves_the_client_in_step(client: RedisClient) -> None:
    with pytest.raises(UnicodeEncodeError):
        await client.ask("ECHO", "\ud800")
    assert await client.ask("ECHO", "next") == b"next"


async def test_cancelled_blocking_read_ends_at_the_server(own_valkey: ValkeyServer) -> None:
    reading, asking = RedisClient(own_valkey.url, blocking=True), RedisClient(own_valkey.url)
    blocked = asyncio.ensure_future(reading.ask("BLPOP", "nothing", 0))

    def is_listed(expected: bool) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return (b"cmd=blpop" in await asking.ask("CLIENT", "LIST")) is expected

        return look

    await eventually(is_listed(True), "the server executes the read")
    blocked.cancel()
    await eventually(is_listed(False), "the server has ended the read")
    assert await reading.ask("PING") == b"PONG", "on a new connection"
    await reading.close()
    await asking.close()


async def test_lost_server_is_reported_and_reached_again_when_it_is_back(own_valkey: ValkeyServer) -> None:
    client = RedisClient(own_valkey.url, blocking=True)
    await client.ask("PING")
    blocked = asyncio.ensure_future(client.ask("BLPOP", "nothing", 0))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(own_valkey.kill)
    with pytest.raises(Unreachable):
        await blocked
    with pytest.raises(Unreachable):
        await client.ask("PING")
    await asyncio.to_thread(own_valkey.start)
    assert await client.ask("PING") == b"PONG"
    await client.close()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def talk_rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await say_nothing(reader, writer)


@pytest.mark.parametrize("answer", [say_nothing, talk_rubbish])
async def test_server_without_a_proper_answer_is_unreachable(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_client, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(redis_client, "CONNECT_SECONDS", 0.05)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = RedisClient(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(Unreachable):
        await client.ask("PING")
    await client.close()
    server.close()


async def test_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        await RedisClient("redis://127.0.0.1:1").ask("PING")


async def test_user_password_and_database_come_from_the_url(own_valkey: ValkeyServer) -> None:
    own = RedisClient(own_valkey.url)
    await own.ask("ACL", "SETUSER", "me", "on", ">se cret", "+@all", "~*")
    inside = RedisClient(own_valkey.url.replace("//", "//me:se%20cret@") + "/5")
    who, listed = await inside.ask_all([("ACL", "WHOAMI"), ("CLIENT", "INFO")])
    assert who == b"me"
    assert b" db=5 " in listed
    assert b" name=endwell " in listed
    for wrong in ("me:wrong", "me"):
        outside = RedisClient(own_valkey.url.replace("//", f"//{wrong}@"))
        with pytest.raises(Unreachable):
            await outside.ask("PING")
        await outside.close()
    await own.close()
    await inside.close()
