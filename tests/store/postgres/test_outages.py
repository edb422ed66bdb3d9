"""A server that is away, read-only, full, foreign or newer: a clear error, and work continues afterwards."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from endwell.errors import StoreError, UsageError
from endwell.policy.limits import Limits
from endwell.runtime import Runtime
from endwell.store.postgres import driver, errors, questions
from endwell.store.postgres.store import PostgresStore
from tests.servers.postgres import PostgresServer
from tests.store.world import PostgresDatabase, World


@pytest.fixture
async def world(postgres_database: PostgresDatabase) -> AsyncIterator[World]:
    world = World(postgres_database)
    await world.open()
    yield world
    await world.close()


def store_at(url: str) -> PostgresStore:
    return PostgresStore(url, limits=Limits(), runtime=Runtime.system())


async def code_of_opening(url: str) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await store_at(url).open()
    return caught.value


# away


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a server may take longer to come back than callers are usually left waiting."""
    for module in (driver, questions):
        monkeypatch.setattr(module, "OUTAGE_SECONDS", 60.0)


@pytest.mark.usefixtures("patient")
async def test_a_short_outage_is_waited_out(honest_postgres_server: PostgresServer) -> None:
    world = World(PostgresDatabase(honest_postgres_server.create_database()))
    await world.open()
    task = await world.running_task()
    honest_postgres_server.kill()
    finish = world.finish(task)
    commit = asyncio.create_task(world.store.commit([finish]))
    question = asyncio.create_task(world.store.counts_by_status("default"))
    await asyncio.to_thread(honest_postgres_server.start)
    (reply,) = await commit
    assert reply.unwrap().status == "succeeded"
    assert sum((await question).values()) == 1
    assert await world.problems() == []
    await world.close()


async def test_a_long_outage_is_an_error_and_ends_by_itself(
    honest_postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(PostgresDatabase(honest_postgres_server.create_database()))
    await world.open()
    task = await world.queued_task()
    monkeypatch.setattr(driver, "OUTAGE_SECONDS", 0.2)
    monkeypatch.setattr(questions, "OUTAGE_SECONDS", 0.2)
    honest_postgres_server.kill()
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            await world.store.commit([world.submit()])
        assert caught.value.code == "store_unreachable"
    with pytest.raises(StoreError):
        await world.task(task)
    await asyncio.to_thread(honest_postgres_server.start)
    monkeypatch.undo()
    assert (await world.reply(world.submit())).is_new
    assert await world.task(task) == task
    assert await world.problems() == []
    await world.close()


@pytest.mark.usefixtures("patient")
async def test_what_was_answered_survives_the_death_of_the_server(
    honest_postgres_server: PostgresServer,
) -> None:
    world = World(PostgresDatabase(honest_postgres_server.create_database()))
    await world.open()
    answered: list[str] = []

    async def submit_on_and_on() -> None:
        while len(answered) < 400:
            replies = await world.store.commit([world.submit() for _ in range(5)])
            answered.extend(reply.unwrap().id for reply in replies)

    work = asyncio.create_task(submit_on_and_on())
    while len(answered) < 50:  # noqa: ASYNC110 - any moment will do
        await asyncio.sleep(0.001)
    await asyncio.to_thread(honest_postgres_server.kill)
    await asyncio.to_thread(honest_postgres_server.start)
    await work
    found = {task_id for task_id, _, _ in await world.store.heads_of_tasks("default", "", 1000)}
    assert found == set(answered)
    assert await world.problems() == []
    await world.close()


@pytest.mark.parametrize(
    ("error", "said"), [(TimeoutError(), "TimeoutError"), (OSError("no route"), "no route")]
)
def test_an_error_without_a_text_is_shown_by_its_type(error: Exception, said: str) -> None:
    assert errors.text_of(error) == said


@pytest.mark.parametrize(
    "refused",
    [
        asyncpg.ProtocolViolationError("unsupported startup parameter: default_transaction_isolation"),
        asyncpg.InvalidSQLStatementNameError('prepared statement "s" does not exist\nHINT: a page of it'),
        asyncpg.DuplicatePreparedStatementError('prepared statement "s" already exists\nHINT: a page of it'),
    ],
    ids=["settings", "a statement that is gone", "a foreign statement"],
)
def test_a_pooler_that_endwell_cannot_work_through_is_an_error_that_says_so(refused: Exception) -> None:
    """In PgBouncer's own words: it speaks as if the server were away, or the statement ours."""
    meaning = errors.meaning_of(refused, "postgresql://ada:secret@host:6432/db")
    assert "\n" not in meaning.message
    assert (meaning.code, meaning.exit_code) == ("store_unsuitable", 5)
    assert "connection pooler" in meaning.message
    assert "name the PostgreSQL server itself" in (meaning.hint or "")
    assert "secret" not in meaning.message


async def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    error = await code_of_opening("postgresql://me:geheim@127.0.0.1:1/none")
    assert error.code == "store_unreachable"
    assert "127.0.0.1:1" in error.message
    assert "geheim" not in error.message + str(error.hint)


async def test_a_database_that_is_not_there_is_named(postgres_url: str) -> None:
    missing = urlunsplit(urlsplit(postgres_url)._replace(path="/nowhere"))
    error = await code_of_opening(missing)
    assert error.code == "store_unreachable"
    assert "no such database" in error.message


@pytest.mark.parametrize("url", ["postgresql://me:geheim@host:port/x", "mysql://me:geheim@host/x"])
async def test_a_bad_url_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        await store_at(url).open()
    assert "geheim" not in caught.value.message


async def test_without_asyncpg_the_hint_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(UsageError) as caught:
        await store_at("postgresql://me@host/x").open()
    assert caught.value.hint == 'pip install "endwell[postgres]"'


# there, and of no use


async def test_a_read_only_server_is_an_error_that_says_so(postgres_url: str) -> None:
    world = World(PostgresDatabase(postgres_url))
    await world.open()
    name = urlsplit(postgres_url).path[1:]
    await world.database.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    other = await world.another_store()
    with pytest.raises(StoreError) as caught:
        await other.commit([world.submit()])
    assert caught.value.code == "store_read_only"
    assert await other.counts_by_status("default") == {}
    await world.close()


async def test_a_full_disk_refuses_commits_until_there_is_room(world: World) -> None:
    await world.database.sql(
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'no space left on device' USING ERRCODE = 'disk_full'; END $$"
    )
    await world.database.sql("CREATE TRIGGER full_disk BEFORE INSERT ON events EXECUTE FUNCTION no_room()")
    with pytest.raises(StoreError) as caught:
        await world.store.commit([world.submit(), world.submit()])
    assert caught.value.code == "store_full"
    assert await world.store.counts_by_status("default") == {}
    await world.database.sql("DROP TRIGGER full_disk ON events")
    assert (await world.reply(world.submit())).is_new
    assert await world.problems() == []


async def test_an_ordinary_role_that_may_create_tables_is_enough(postgres_url: str) -> None:
    admin = await asyncpg.connect(postgres_url)
    await admin.execute("CREATE ROLE plain LOGIN")
    await admin.execute("GRANT ALL ON SCHEMA public TO plain")
    parts = urlsplit(postgres_url)
    url = urlunsplit(parts._replace(netloc=f"plain@{parts.netloc.rpartition('@')[2]}"))
    world = World(PostgresDatabase(url))
    await world.open()
    task = await world.running_task()
    assert (await world.do(world.finish(task))).status == "succeeded"
    await world.close()
    await admin.execute("DROP OWNED BY plain; DROP ROLE plain")
    await admin.close()


async def test_a_role_that_may_not_create_tables_is_refused(postgres_url: str) -> None:
    admin = await asyncpg.connect(postgres_url)
    await admin.execute("CREATE ROLE poor LOGIN")
    parts = urlsplit(postgres_url)
    error = await code_of_opening(
        urlunsplit(parts._replace(netloc=f"poor@{parts.netloc.rpartition('@')[2]}"))
    )
    assert "may not use" in error.message
    await admin.execute("DROP ROLE poor")
    await admin.close()


# other loops, other processes


async def test_a_store_for_another_loop_commits_there(world: World) -> None:
    await world.open_session()
    sibling = world.store.for_another_loop()
    beat = world.heartbeat()
    renewed = []

    async def heart() -> None:
        await sibling.open()
        renewed.append((await sibling.commit_one(beat)).session)
        await sibling.close()

    thread = threading.Thread(target=lambda: asyncio.run(heart()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert renewed == [await world.store.session("default", "s1")]


async def test_a_forked_child_is_refused(world: World) -> None:
    command = world.submit()
    child = os.fork()
    if child == 0:
        try:
            world.store.commit([command]).send(None)
        except UsageError:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (await world.reply(command)).is_new


async def test_the_server_says_how_durable_it_is_and_what_it_may_use(
    honest_postgres_server: PostgresServer,
) -> None:
    store = store_at(honest_postgres_server.create_database())
    await store.open()
    settings = await store.settings()
    assert settings.pop("server_version")
    assert settings == {
        "store": "postgresql",
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "isolation": "read committed",
        "shared_buffers": "64MB",
        "max_wal_size": "1GB",
    }
    await store.close()
