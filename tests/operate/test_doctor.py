"""The doctor: everything it checks is broken for real, and found under its own code with a remedy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from endwell import Context, Fail
from endwell.doorbell.contract import BellHealth
from endwell.machine import clocks
from endwell.model.commands import AgentSpec, Block, RegisterAgents
from endwell.model.moments import SECOND
from endwell.model.session import FOREIGN_HOST
from endwell.operate import bounds as operate_bounds
from endwell.operate import relay as operate_relay
from endwell.operate.doctor import storage
from endwell.operate.doctor.examine import CHECKS, examine
from endwell.operate.doctor.finding import Patient
from endwell.operate.metrics import metrics
from tests.servers.webhook import Receiver
from tests.support.manual_clock import ManualClock
from tests.support.world import START_US, World, eventually

HEALTHY = BellHealth(kind="local", connected=True)


@pytest.fixture
async def office(sqlite_url: str) -> AsyncIterator[World]:
    """A world with an agent that succeeds and one that fails."""
    async with World(sqlite_url) as world:

        @world.app.agent("clerk")
        async def clerk(payload: Any = None) -> str:
            return "done"

        @world.app.agent("picky", retries=0)
        async def picky() -> None:
            raise Fail("no")

        @world.app.agent("payer", retries=0)
        async def payer(ctx: Context) -> Any:
            return await ctx.effect("pay", lambda: "paid", key="k")

        await world.registered("clerk", "picky", "payer")
        yield world


async def patient_of(world: World, **changes: Any) -> Patient:
    url = world.app.url
    about: dict[str, Any] = {
        "store": world.store,
        "bell": HEALTHY,
        "clock": world.app.runtime.clock,
        "settings": world.app.settings,
        "namespaces": (world.namespace,),
        "path": Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else None,
        "facts": await world.store.settings(),
    }
    return Patient(**{**about, **changes})


async def found(world: World, **changes: Any) -> dict[str, dict[str, Any]]:
    """The findings by their codes; each has a remedy."""
    report = await examine(await patient_of(world, **changes))
    assert report["ok"] == all(finding["severity"] != "error" for finding in report["findings"])
    assert all(finding["remedy"] and finding["message"] for finding in report["findings"])
    return {finding["code"]: finding for finding in report["findings"]}


async def ended(world: World, agent: str) -> str:
    handle = await world.submitted(agent)
    worker = await world.started_worker()
    while not (await handle.task()).is_ended:
        worker._source.may_have_work = True
        await worker.run_once()
    return handle.id


async def test_a_working_installation_has_no_findings(office: World) -> None:
    await ended(office, "clerk")
    await (await office.supervisor()).run_once()
    report = await examine(await patient_of(office))
    assert report["findings"] == []
    assert report["ok"]
    assert [check["name"] for check in report["checks"]] == list(CHECKS)
    assert {check["status"] for check in report["checks"]} == {"ok"}


async def test_a_silent_pmo_is_an_error_while_there_are_tasks(office: World) -> None:
    assert (await found(office))["no_supervisor"]["severity"] == "warning", "nothing runs, nothing waits"
    await office.submitted("clerk")
    assert (await found(office))["no_supervisor"]["severity"] == "error"
    pmo = await office.supervisor()
    await pmo.run_once()
    assert "no_supervisor" not in await found(office)
    office.clock.advance(16)
    assert (await found(office))["no_supervisor"]["facts"]["seconds"] == pytest.approx(16)
    text = await metrics(office.store, [office.namespace], office.app.settings)
    assert f'endwell_supervised{{namespace="{office.namespace}"}} 0' in text
    await pmo.run_once()
    text = await metrics(office.store, [office.namespace], office.app.settings)
    assert f'endwell_supervised{{namespace="{office.namespace}"}} 1' in text
    assert f'endwell_tasks_live{{namespace="{office.namespace}"}} 1' in text


async def test_tasks_without_a_worker_and_a_lapsed_worker_are_found(office: World) -> None:
    await office.submitted("clerk")
    assert (await found(office))["no_live_worker"]["facts"] == {"agent": "clerk", "waiting": 1}
    await office.silent_session("clerk", lease_seconds=30)
    assert "no_live_worker" not in await found(office)
    office.clock.advance(29)
    assert "watchdog_late" in await found(office), "it beats, but its watchdog never ticked"
    office.clock.advance(2)
    findings = await found(office)
    assert {"worker_lapsed", "no_live_worker"} <= findings.keys()


async def test_a_foreign_worker_has_no_late_watchdog(office: World) -> None:
    await office.silent_session("clerk", lease_seconds=60, host=FOREIGN_HOST)
    office.clock.advance(59)
    assert "watchdog_late" not in await found(office)
    office.clock.advance(2)
    assert "a foreign worker" in (await found(office))["worker_lapsed"]["message"]


async def test_an_overdue_clock_is_found(office: World) -> None:
    handle = await office.submitted("clerk", deadline=60)
    office.clock.advance(65)
    assert "bound_exceeded" not in await found(office), "two ticks are allowed"
    office.clock.advance(10)
    assert (await found(office))["bound_exceeded"]["facts"]["tasks"] == [handle.id]


async def test_an_agent_whose_tasks_might_exceed_their_bound_is_found(
    office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "bound_too_late" not in await found(office)
    broken = tuple(rule for rule in clocks.RULES if rule.name != "ends_by")
    monkeypatch.setattr(operate_bounds, "RULES", broken)
    finding = (await found(office))["bound_too_late"]
    assert (finding["severity"], finding["namespace"]) == ("error", office.namespace)
    assert finding["facts"]["seconds"] is None
    assert "might end never" in finding["message"]


async def test_a_doorbell_without_its_server_is_found(sqlite_url: str, own_valkey: Any) -> None:
    settings = {"redis.url": own_valkey.url, "doorbell.kind": "redis"}
    async with World(sqlite_url, settings=settings) as world:
        assert "doorbell_down" not in await found(world, bell=world.node.bell.health())
        own_valkey.kill()
        await eventually(lambda: not world.node.bell.health().connected, "the bell knows")
        finding = (await found(world, bell=world.node.bell.health()))["doorbell_down"]
        assert finding["severity"] == "warning"
        own_valkey.start()


async def test_a_lagging_relay_is_found_with_its_trouble(sqlite_url: str) -> None:
    with Receiver() as receiver:
        receiver.answer = lambda request: 500
        told = {
            "relay.kind": "webhook",
            "relay.url": receiver.url,
            "relay.tries": 1,
            "relay.retry_seconds": 0.05,
        }
        async with World(sqlite_url, settings=told) as world:

            @world.app.agent("clerk")
            async def clerk() -> None: ...

            await world.registered("clerk")
            await ended(world, "clerk")
            assert "relay_lagging" not in await found(world)
            world.clock.advance(61)
            lagging = (await found(world))["relay_lagging"]
            assert "an event of 61 s ago was not sent yet: no relay has run yet" in lagging["message"]
            status = await operate_relay.status(world.store, world.namespace)
            assert status["trouble"] == lagging["facts"]["trouble"] == "no relay has run yet"
            relay = (await world.supervisor()).relay
            assert relay is not None
            with pytest.raises(Exception, match="answered 500"):
                await relay.run_once()
            assert "answered 500" in (await found(world))["relay_lagging"]["message"]
            receiver.answer = lambda request: 204
            await relay.run_once()
            assert "relay_lagging" not in await found(world)


@pytest.mark.parametrize(
    ("spoil", "codes"),
    [
        ("UPDATE events SET actor = 'mallory' WHERE version = 2", {"record_broken"}),
        ("DELETE FROM tasks", {"record_broken", "conservation_broken"}),
        ("UPDATE tallies SET ended = ended + 1", {"conservation_broken"}),
        ("DROP INDEX tasks_due", {"schema_incomplete"}),
    ],
)
async def test_a_tampered_record_is_found(office: World, spoil: str, codes: set[str]) -> None:
    await ended(office, "clerk")
    await (await office.supervisor()).run_once()
    await office.sql(spoil)
    assert (await found(office)).keys() == codes


async def test_a_damaged_file_is_found(sqlite_url: str) -> None:
    async with World(sqlite_url) as world:

        @world.app.agent("clerk")
        async def clerk(payload: str) -> None: ...

        await world.registered("clerk")
        await world.client.submit_many("clerk", ["x" * 5000] * 20)
    path = sqlite_url.removeprefix("sqlite:///")
    with open(path, "r+b") as file:  # noqa: ASYNC230 (a test may block)
        pages = file.seek(0, 2) // 4096
        assert pages > 40
        for page in range(pages // 2, pages // 2 + 4):
            file.seek(page * 4096)
            file.write(b"\xff" * 64)
    async with World(sqlite_url) as world:
        findings = await found(world)
    assert findings.keys() & {"store_damaged", "store_corrupt"}, "by its own check, or because it cannot even"


async def test_a_nearly_full_disk_is_found(office: World) -> None:
    assert (await found(office, least_free_bytes=2**60))["disk_low"]["severity"] == "error"


async def test_a_clock_that_was_set_back_is_found(office: World) -> None:
    await office.submitted("clerk")
    office.clock.set(START_US - 3600 * SECOND)
    assert (await found(office))["clock_behind"]["facts"]["seconds"] == pytest.approx(3600)


async def test_tasks_that_wait_for_a_person_are_found(office: World) -> None:
    await ended(office, "picky")
    held = await office.submitted("clerk")
    await office.store.commit_one(
        Block(command_id="b1", namespace=office.namespace, task_id=held.id, reason="look at it")
    )
    await office.sql(
        "INSERT INTO agent_inbox (namespace, id, agent, message_type, correlation_id, status, watchdog_error,"
        " created_at) VALUES (?, 'm1', 'clerk', 'signal', 'c1', 'skipped', 'missing_channel', ?)",
        office.namespace,
        await office.store.now(),
    )
    await ended(office, "payer")
    await office.sql("UPDATE effects SET status = 'unknown'")
    findings = await found(office)
    wanted = {"dead_letters_open", "tasks_blocked", "messages_skipped", "effects_unknown"}
    assert wanted <= findings.keys()
    assert {findings[code]["severity"] for code in wanted} == {"warning"}
    assert {findings[code]["facts"]["count"] for code in wanted} == {1}

    office.clock.advance(25 * 3600)
    assert (await found(office)).keys() & wanted == wanted - {"messages_skipped"}, "yesterday's news"


async def test_unsafe_postgres_settings_and_a_skewed_clock_are_found(shared_postgres_url: str) -> None:
    async with World(shared_postgres_url) as world:
        off = ManualClock(await world.store.now() + 60 * SECOND)
        findings = await found(world, clock=off)
    assert findings["clock_skew"]["facts"]["seconds"] == pytest.approx(60, abs=5)
    assert "fsync" in findings["postgres_unsafe"]["facts"]["off"], "the tests' own server is a fast one"


async def test_an_idle_open_transaction_is_found(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G6: it slows all claims down."""
    async with World(postgres_url) as world:
        careless = await asyncpg.connect(postgres_url, server_settings={"application_name": "report"})
        try:
            await careless.execute("BEGIN")
            await careless.execute("SELECT count(*) FROM tasks")
            assert "idle_in_transaction" not in await found(world), "it may still be at work"
            monkeypatch.setattr(storage, "IDLE_SECONDS", 0.0)
            finding = (await found(world))["idle_in_transaction"]
            assert finding["severity"] == "warning"
            assert (finding["facts"]["pid"], finding["facts"]["name"]) == (
                careless.get_server_pid(),
                "report",
            )
            await careless.execute("COMMIT")
            assert "idle_in_transaction" not in await found(world)
        finally:
            await careless.close()


async def test_an_open_transaction_that_wrote_events_is_found_on_postgresql(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(
        postgres_url, settings={"relay.kind": "webhook", "relay.url": "http://localhost"}
    ) as world:
        writer = await asyncpg.connect(postgres_url, server_settings={"application_name": "loader"})
        try:
            await writer.execute("BEGIN")
            await writer.execute(
                "INSERT INTO events (namespace, task_id, version, type, schema, command_id, actor, at, epoch,"
                " data, hash) VALUES ('other', 't', 1, 'task.created', 1, 'c', '', 1, 0, '{}', '')"
            )
            assert "log_held_back" not in await found(world), "it may be about to commit"
            await world.store.commit_one(
                RegisterAgents(command_id="r", namespace=world.namespace, agents=(AgentSpec(name="clerk"),))
            )
            await world.client.submit("clerk")
            world.clock.advance(100)
            monkeypatch.setattr(storage, "HELD_BACK_SECONDS", 0.0)
            findings = await found(world)
            finding = findings["log_held_back"]
            assert finding["severity"] == "error"
            assert (finding["facts"]["pid"], finding["facts"]["name"]) == (writer.get_server_pid(), "loader")
            assert finding["facts"]["database"] == postgres_url.rpartition("/")[2]
            assert f"process {writer.get_server_pid()} of PostgreSQL (loader" in finding["message"]
            assert findings["relay_lagging"]["facts"]["seconds"] >= 100
            await writer.execute("ROLLBACK")
            assert "log_held_back" not in await found(world)
        finally:
            await writer.close()


async def test_a_missing_trigger_is_found_on_postgresql(postgres_url: str) -> None:
    async with World(postgres_url) as world:
        await world.sql("DROP TRIGGER events_hold_position ON events")
        assert (await found(world))["schema_incomplete"]["facts"]["missing"] == ["events_hold_position"]


async def test_a_missing_index_is_found_on_postgresql(postgres_url: str) -> None:
    async with World(postgres_url) as world:
        assert "schema_incomplete" not in await found(world)
        await world.sql("DROP INDEX tasks_ready")
        assert (await found(world))["schema_incomplete"]["facts"]["missing"] == ["tasks_ready"]


def test_an_unsafe_sqlite_is_found() -> None:
    """The installed SQLite is always safe, so its facts are given."""
    fine = {"sqlite_version": "3.54.0", "journal_mode": "wal", "synchronous": 2}
    assert storage.sqlite_settings(fine) == []
    old = storage.sqlite_settings({**fine, "sqlite_version": "3.40.1"})
    loose = storage.sqlite_settings({**fine, "synchronous": 1})
    assert [each.code for each in (*old, *loose)] == ["sqlite_too_old", "sqlite_unsafe"]
