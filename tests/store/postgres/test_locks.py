"""A foreign transaction keeps rows or tables locked: doctor and why name it, and call no process dead."""

from __future__ import annotations

import asyncpg
import pytest

from endwell.errors import StoreError
from endwell.operate.doctor.examine import examine
from endwell.operate.doctor.finding import Patient
from endwell.operate.why import WhyPace, why
from endwell.store.postgres import connection
from endwell.store.postgres import store as postgres_store
from tests.support.world import World

SIGNS_OF_LIFE = {"no_supervisor", "no_live_worker", "worker_lapsed"}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "LOCKED_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("statement", "table", "hides_life"),
    [
        ("SELECT * FROM sessions FOR UPDATE", "sessions", True),
        ("LOCK TABLE sessions, tasks IN SHARE MODE", "sessions, tasks", True),
        ("UPDATE tasks SET priority = 1", "tasks", False),
    ],
)
async def test_doctor_and_why_name_the_transaction_that_keeps_tables_locked(
    postgres_url: str, statement: str, table: str, hides_life: bool
) -> None:
    async with World(postgres_url) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        handle = await world.submitted("clerk")
        stranger = await asyncpg.connect(postgres_url, server_settings={"application_name": "etl"})
        await stranger.execute(f"BEGIN; {statement}")
        found = await findings(world)
        assert found["locks_held"]["facts"]["pid"] == stranger.get_server_pid()
        assert ", ".join(found["locks_held"]["facts"]["tables"]) == table
        assert bool(SIGNS_OF_LIFE & set(found)) != hides_life
        pace = WhyPace.from_settings(world.app.settings)
        notes = (await why(world.store, world.namespace, handle.id, pace=pace))["notes"]
        assert f"process {stranger.get_server_pid()} of PostgreSQL (etl" in notes[0]
        assert (len(notes) == 1) == hides_life

        await stranger.execute("ROLLBACK")
        await stranger.close()
        assert "locks_held" not in await findings(world)


async def test_a_transaction_that_only_reads_is_not_named(postgres_url: str) -> None:
    async with World(postgres_url) as world:
        reader = await asyncpg.connect(postgres_url)
        await reader.execute("BEGIN; SELECT count(*) FROM tasks; SELECT count(*) FROM sessions")
        assert await world.store.lock_holders() == []
        await reader.close()


async def test_a_table_that_is_locked_is_not_called_a_server_that_cannot_be_reached(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = float(connection.READING["lock_timeout"].removesuffix("s"))
    assert patience < connection.COMMAND_SECONDS, "or the connection would count as lost"
    monkeypatch.setitem(connection.READING, "lock_timeout", "100ms")
    async with World(postgres_url) as world:
        stranger = await asyncpg.connect(postgres_url)
        await stranger.execute("BEGIN; LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreError, match="other transactions held the rows") as refused:
            await world.store.known_namespaces()
        assert refused.value.code == "store_busy"
        await stranger.close()
        await world.store.known_namespaces()


async def findings(world: World) -> dict[str, dict]:  # type: ignore[type-arg]
    patient = Patient(
        store=world.store,
        settings=world.app.settings,
        namespaces=(world.namespace,),
        bell=world.node.bell.health(),
        clock=world.clock,
        facts=await world.store.settings(),
    )
    return {finding["code"]: finding for finding in (await examine(patient))["findings"]}
