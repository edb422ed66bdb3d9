"""Questions have few connections, which are used again if they are fit and closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from endwell.errors import EndwellError
from endwell.runtime import Runtime
from endwell.store.postgres import connection
from endwell.store.postgres.connection import STEADY
from endwell.store.postgres.questions import MOST_CONNECTIONS, Questions
from tests.store.world import PostgresDatabase
from tests.support.world import eventually

PID = "SELECT pg_backend_pid()"
SLOW = "SELECT pg_sleep(600)"


@pytest.fixture
async def questions(postgres_database: PostgresDatabase) -> AsyncIterator[Questions]:
    questions = Questions(postgres_database.url, Runtime.system(), STEADY)
    await questions.open()
    yield questions
    await questions.close()


async def connection_of(questions: Questions) -> int:
    return int((await questions.ask_sql(PID))[0][0])


async def wait_until_asked(database: PostgresDatabase, pid: int) -> None:
    async def is_asked() -> bool:
        active = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'"
        return bool(await database.sql(active))

    await eventually(is_asked, "the server works on it")


async def wait_until_closed(database: PostgresDatabase, pid: int) -> None:
    async def is_closed() -> bool:
        return not await database.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}")

    await eventually(is_closed, "the connection is closed")


async def test_a_connection_is_used_again(questions: Questions) -> None:
    assert await connection_of(questions) == await connection_of(questions)


async def test_many_questions_at_once_share_a_few_connections(questions: Questions) -> None:
    found = await asyncio.gather(*(connection_of(questions) for _ in range(20)))
    assert len(set(found)) <= MOST_CONNECTIONS


async def test_a_question_that_the_server_refuses_costs_no_connection(questions: Questions) -> None:
    first = await connection_of(questions)
    with pytest.raises(EndwellError, match="division by zero"):
        await questions.ask_sql("SELECT 1 / 0")
    assert await connection_of(questions) == first


async def test_a_cancelled_question_gives_its_connection_up(
    questions: Questions, postgres_database: PostgresDatabase
) -> None:
    first = await connection_of(questions)
    asking = asyncio.create_task(questions.ask_sql(SLOW))
    await wait_until_asked(postgres_database, first)
    asking.cancel()
    await asyncio.wait([asking])
    assert await connection_of(questions) != first


async def test_a_lost_connection_is_replaced(
    questions: Questions, postgres_database: PostgresDatabase
) -> None:
    first = await connection_of(questions)
    await postgres_database.sql(f"SELECT pg_terminate_backend({first})")
    assert await connection_of(questions) != first


async def test_an_idle_connection_is_closed(
    postgres_database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.05)
    questions = Questions(postgres_database.url, Runtime.system(), STEADY)
    await questions.open()
    first = await connection_of(questions)
    await wait_until_closed(postgres_database, first)
    assert await connection_of(questions) != first
    await questions.close()


async def test_closing_waits_for_a_question_under_way_and_leaves_no_connection(
    questions: Questions, postgres_database: PostgresDatabase
) -> None:
    first = await connection_of(questions)
    asking = asyncio.create_task(questions.ask_sql("SELECT pg_backend_pid(), pg_sleep(0.2)"))
    await wait_until_asked(postgres_database, first)
    await questions.close()
    assert (await asking)[0][0] == first
    await wait_until_closed(postgres_database, first)


async def test_closing_does_not_wait_long_for_a_question_under_way(
    questions: Questions, postgres_database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("endwell.store.postgres.questions.CLOSE_SECONDS", 0.05)
    monkeypatch.setattr("endwell.store.postgres.questions.OUTAGE_SECONDS", 0.0)
    first = await connection_of(questions)
    asking = asyncio.create_task(questions.ask_sql(SLOW))
    await wait_until_asked(postgres_database, first)
    await questions.close()
    with pytest.raises(EndwellError):
        await asking
