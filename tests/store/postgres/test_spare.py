"""The connections that questions are asked on: few, used again if fit, gone when nobody needs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from endwell.errors import UsageError
from endwell.runtime import Runtime
from endwell.store.postgres import read_pool
from endwell.store.postgres.connection import STEADY
from endwell.store.postgres.read_pool import MOST_CONNECTIONS, ReadPool
from tests.store.world import PostgresDatabase
from tests.support.world import eventually

WHO = "SELECT pg_backend_pid()"


@pytest.fixture
async def lines(postgres_database: PostgresDatabase) -> AsyncIterator[ReadPool]:
    lines = ReadPool(postgres_database.url, Runtime.system(), STEADY)
    lines.open()
    yield lines
    await lines.close()


async def who(lines: ReadPool) -> int:
    return int((await lines.fetch(WHO, ()))[0][0])


async def is_there(database: PostgresDatabase, pid: int) -> bool:
    return bool(await database.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))


async def test_a_connection_is_used_again(lines: ReadPool) -> None:
    assert await who(lines) == await who(lines)


async def test_no_more_than_a_few_are_made_and_others_wait(lines: ReadPool) -> None:
    found = await asyncio.gather(*(who(lines) for _ in range(20)))
    assert len(set(found)) == MOST_CONNECTIONS


async def test_a_question_that_the_server_refuses_costs_no_connection(lines: ReadPool) -> None:
    first = await who(lines)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await lines.fetch("SELECT 1 / 0", ())
    assert await who(lines) == first


async def test_a_connection_whose_answer_nobody_waited_for_is_not_used_again(lines: ReadPool) -> None:
    first = await who(lines)
    asking = asyncio.create_task(lines.fetch("SELECT pg_sleep(600)", ()))
    await eventually(lambda: not lines._idle, "it is asked")
    asking.cancel()
    await asyncio.wait([asking])
    assert await who(lines) != first


async def test_a_connection_that_was_lost_is_made_anew(
    lines: ReadPool, postgres_database: PostgresDatabase
) -> None:
    first = await who(lines)
    await postgres_database.sql(f"SELECT pg_terminate_backend({first})")
    await eventually(lambda: lines._idle[0][0].is_closed(), "it is noticed")
    assert await who(lines) != first


async def test_connections_that_nobody_needs_are_let_go(
    lines: ReadPool, postgres_database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pool, "IDLE_SECONDS", 0.05)
    first = await who(lines)

    async def is_gone() -> bool:
        return not await is_there(postgres_database, first)

    await eventually(is_gone, "it is closed")
    assert await who(lines) != first


async def test_when_it_is_closed_a_question_under_way_is_answered_and_leaves_nothing_behind(
    lines: ReadPool, postgres_database: PostgresDatabase
) -> None:
    first = await who(lines)
    asking = asyncio.create_task(lines.fetch("SELECT pg_sleep(0.2), pg_backend_pid()", ()))
    await eventually(lambda: not lines._idle, "it is asked")
    await lines.close()
    assert (await asking)[0][1] == first

    async def is_gone() -> bool:
        return not await is_there(postgres_database, first)

    await eventually(is_gone, "it is closed")
    with pytest.raises(UsageError):
        await who(lines)
