"""Export and import: a record moves to another store, where its tasks continue; bad files change nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from endwell import Context, Fail
from endwell.errors import BadInput, Refused
from endwell.operate.record.verify import verify
from endwell.operate.transfer.exporting import export
from endwell.operate.transfer.importing import import_lines
from endwell.runtime import SystemClock
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World

TABLES = {
    "tasks": "id",
    "turn_waiting_tools": "turn_id, tool_call_id",
    "approvals": "id",
    "dead_letters": "task_id",
    "effects": "key",
    "cards": "id",
}


def register(world: World) -> None:
    @world.app.agent("clerk")
    async def clerk(ctx: Context, order: Any = None) -> Any:
        await ctx.step("price", lambda: 15)
        return await ctx.effect("pay", lambda: "paid", key="pay:1")

    @world.app.agent("picky", retries=0)
    async def picky() -> None:
        raise Fail("no")

    @world.app.agent("asker")
    async def asker(ctx: Context) -> Any:
        return [await ctx.tool("oracle", 1), await ctx.wait_signal("go")]


@pytest.mark.covers("S3.39", "S3.40")
async def test_a_recorded_step_is_exported_with_its_names_outside(store_url: str) -> None:
    async with World(store_url) as world:

        @world.app.agent("clerk")
        async def clerk(ctx: Context) -> None:
            await ctx.step("price", lambda: 15)
            await ctx.effect("pay", lambda: "paid", key="pay:1")

        await world.registered("clerk")
        handle = await world.submitted("clerk")
        await world.brought_to(await world.started_worker(), handle, "succeeded")
        lines = [json.loads(line) for line in await exported(world)]
    events = [line["event"] for line in lines if "event" in line]
    assert [event.get("names") for event in events if event["type"] == "step.recorded"] == [
        ["command_committed", "node_finished"],
        ["tool_invocation_finished", "command_committed", "node_finished"],
    ]
    assert not any("names" in event for event in events if event["type"] != "step.recorded")


@pytest.fixture
async def full(store_url: str) -> AsyncIterator[World]:
    """A store with tasks that succeeded, failed, wait, are queued, and are delayed."""
    async with World(store_url) as world:
        await fill(world)
        yield world


async def fill(world: World) -> None:
    register(world)
    await world.registered("clerk", "picky", "asker")
    handles = [await world.submitted(agent) for agent in ("clerk", "picky", "asker")]
    worker = await world.started_worker()
    for handle, status in zip(handles, ("succeeded", "failed", "suspended"), strict=True):
        await world.brought_to(worker, handle, status)
    await world.client.signal(handles[2].id, "go", "now")  # kept until the turn waits for it
    await world.submitted("clerk", {"later": 1}, delay=3600)
    await world.submitted("clerk", {"key": 1}, key="order-1")


async def exported(world: World) -> list[bytes]:
    written: list[bytes] = []
    await export(world.store, [world.namespace], written.append)
    return written


async def imported(world: World, file: list[bytes]) -> dict[str, Any]:
    return await import_lines(world.store, lambda: file, world.app.runtime.ids.new)


async def rows(world: World, table: str, order: str) -> list[tuple[Any, ...]]:
    sql = f"SELECT * FROM {table} WHERE namespace = ? ORDER BY {order}"
    return await world.sql(sql, world.namespace)


def another(place: Path | str, namespace: str) -> World:
    """An empty store: a file in this directory, or at this URL."""
    world = World(place if isinstance(place, str) else f"sqlite:///{place}/other.db")
    world.namespace = world.app.namespace = namespace
    register(world)
    return world


async def test_an_imported_record_is_equal_and_its_tasks_continue(full: World, tmp_path: Path) -> None:
    file = await exported(full)
    async with another(tmp_path, full.namespace) as other:
        other.clock.set(await full.store.now())  # a server has a clock of its own
        amount = await imported(other, file)
        assert (amount["tasks"], amount["messages"]) == (5, 1)
        if full.app.url.startswith("sqlite"):
            for table, order in TABLES.items():
                assert await rows(other, table, order) == await rows(full, table, order), table
        assert await verify(other.store, [full.namespace]) == await verify(full.store, [full.namespace])
        assert (await other.store.count_conservation(full.namespace)).is_conserved
        assert await exported(other) == file, "exported again, it is the same file"

        again = await other.submitted("clerk", {"key": 1}, key="order-1")
        assert again.id in {task.id for task in await full.store.tasks_page(full.namespace)}
        await goes_on(other)


async def goes_on(world: World) -> None:
    """Answer the turn that waited when it was exported; it ends."""
    (call,) = await world.store.open_calls(world.namespace)
    await world.client.answer(call.tool_call_id, 42)
    handle = await world.client.task(call.task_id)
    worker = await world.started_worker()
    await world.brought_to(worker, handle, "succeeded")
    assert await handle.result(PATIENCE_SECONDS) == [42, "now"]


async def test_the_record_moves_from_sqlite_to_postgresql_and_back(
    sqlite_url: str, shared_postgres_url: str, tmp_path: Path
) -> None:
    async with World(sqlite_url) as source:
        source.clock.set(SystemClock().now_us())  # the server's clock is real: tasks must not be over there
        await fill(source)
        file = await exported(source)
        checked = await verify(source.store, [source.namespace])
    async with another(shared_postgres_url, source.namespace) as server:
        await imported(server, file)
        assert await verify(server.store, [source.namespace]) == checked
        assert (checked["ok"], checked["checked"]) == (True, 5)
        assert (await server.store.count_conservation(source.namespace)).is_conserved
        assert await exported(server) == file, "byte for byte"
        await goes_on(server)
        back = await exported(server)
        kept = {table: await rows(server, table, order) for table, order in TABLES.items()}
        with pytest.raises(Refused, match="has tasks already"):
            await imported(server, file)
    async with another(tmp_path, source.namespace) as home:
        await imported(home, back)
        assert (await verify(home.store, [source.namespace]))["ok"]
        assert (await home.store.count_conservation(source.namespace)).is_conserved
        assert await exported(home) == back
        for table, order in TABLES.items():
            assert len(await rows(home, table, order)) == len(kept[table]), table


async def test_a_file_with_a_broken_chain_is_refused_by_postgresql(
    sqlite_full: World, shared_postgres_url: str
) -> None:
    file = await exported(sqlite_full)
    wrong, number = _changed(file, "event", lambda event: event.update(actor="mallory"), nth=2)
    await refused(sqlite_full, shared_postgres_url, wrong, rf"^line {number}: .*does not match its hash")
    lost = file[: number - 1] + file[number:]
    await refused(sqlite_full, shared_postgres_url, lost, "follows version")
    await refused(sqlite_full, shared_postgres_url, file[:-1], "cut off")


async def test_overlapping_commands_of_an_earlier_release_are_imported_one_after_the_other(
    full: World, tmp_path: Path
) -> None:
    file = await exported(full)
    events = [json.loads(line).get("event") or {"command_id": n, "task_id": n} for n, line in enumerate(file)]
    ends = [
        n
        for n in range(1, len(file) - 2)
        if events[n - 1]["command_id"] == events[n]["command_id"]
        and events[n]["task_id"] != events[n + 1]["task_id"]
    ]
    assert ends
    parted = list(file)
    for n in ends:
        parted[n : n + 2] = reversed(parted[n : n + 2])
    async with another(tmp_path, full.namespace) as other:
        await imported(other, parted)
        again = await exported(other)
        assert sorted(again) == sorted(file)
        for n in ends:
            assert again[again.index(file[n]) - 1] == file[n - 1]
        assert (await imported(other, parted))["already_there"]


async def test_a_running_task_is_taken_over(full: World, tmp_path: Path) -> None:
    session = await full.silent_session("clerk")
    (taken,) = await full.claimed(session, "clerk")
    file = await exported(full)
    async with another(tmp_path, full.namespace) as other:
        other.clock.set(await full.store.now())
        await imported(other, file)
        pmo = await other.supervisor()
        await pmo.run_once()
        task = await other.store.task(full.namespace, taken.task.id)
        assert (task.status, task.crash_count) == ("queued", 1)


def _changed(file: list[bytes], kind: str, change: Any, nth: int = 0) -> tuple[list[bytes], int]:
    """The file with one changed line of this kind, and the line's number."""
    places = [number for number, line in enumerate(file) if kind in json.loads(line)]
    number = places[nth]
    document = json.loads(file[number])
    change(document[kind])
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return [*file[:number], text, *file[number + 1 :]], number + 1


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        ("event", lambda e: e.update(actor="mallory"), "does not match its hash"),
        ("event", lambda e: e["data"].update(priority=9), "does not match its hash"),
        ("event", lambda e: e.update(version=7), "follows version"),
        ("event", lambda e: e.pop("hash"), "hash"),
        ("card", lambda e: e.update(content={"other": 1}), "does not match its hash"),
        ("card", lambda e: e.update(namespace="other"), "is not one of this export"),
        ("end", lambda e: e.update(events=1), "lines are missing"),
        ("head", lambda e: e.update(version=99), "this release reads"),
        ("message", lambda e: e.update(task_id="missing"), "not in the file before it"),
    ],
)
async def test_a_bad_line_is_named_and_nothing_is_changed(
    sqlite_full: World, tmp_path: Path, kind: str, change: Any, problem: str
) -> None:
    file, number = _changed(await exported(sqlite_full), kind, change)
    await refused(sqlite_full, tmp_path, file, rf"^line {number}: .*{problem}")


@pytest.fixture
async def sqlite_full(sqlite_url: str) -> AsyncIterator[World]:
    """A smaller store on SQLite only."""
    async with World(sqlite_url) as world:
        register(world)
        await world.registered("asker")
        handle = await world.submitted("asker")
        await world.brought_to(await world.started_worker(), handle, "suspended")
        await world.client.signal(handle.id, "go", 1)
        yield world


async def refused(world: World, place: Path | str, file: list[bytes], problem: str) -> None:
    async with another(place, world.namespace) as other:
        with pytest.raises(BadInput, match=problem) as refusal:
            await imported(other, file)
        assert refusal.value.code == "bad_line"
        for table, order in TABLES.items():
            assert await rows(other, table, order) == []


async def test_a_cut_off_or_malformed_file_is_refused(sqlite_full: World, tmp_path: Path) -> None:
    file = await exported(sqlite_full)
    await refused(sqlite_full, tmp_path, file[:-1], rf"^line {len(file)}: .*cut off")
    await refused(sqlite_full, tmp_path, [*file[:2], b"{half", *file[3:]], r"^line 3: ")
    await refused(sqlite_full, tmp_path, [b"hello\n"], r"^line 1: ")
    no_cards = [line for line in file if "card" not in json.loads(line)]
    await refused(sqlite_full, tmp_path, no_cards, "names card .*, which is not in the file")


async def test_a_store_with_other_tasks_refuses_the_import(sqlite_full: World) -> None:
    file = await exported(sqlite_full)
    await sqlite_full.submitted("asker")
    more = await exported(sqlite_full)
    with pytest.raises(Refused, match="has tasks already"):
        await imported(sqlite_full, file)
    assert await exported(sqlite_full) == more
