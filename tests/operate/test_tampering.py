"""Verify finds any change past Endwell in tables that the log accounts for, column by column."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import apsw
import asyncpg
import msgspec
import pytest

from endwell import Approval, Context
from endwell.model.approval import ApprovalRow
from endwell.model.card import Card
from endwell.model.effect import Effect
from endwell.model.status import SUSPENDED
from endwell.model.task import Task
from endwell.operate.record.verify import verify
from endwell.store.reads.side_rows import DeadLetter, KeptWait
from tests.support.world import World, eventually

FORGED = b'{"forged":true}'
FORGED_HASH = hashlib.sha256(FORGED).hexdigest()
SETTINGS: Final = {"progress.repeat_limit": 2, "progress.action": "nudge"}
KINDS: Final = frozenset(
    (
        *("task.instruction", "task.deliverable", "task.draft", "tool.call", "tool.result", "step.result"),
        *("step.checked", "step.reference", "step.failure", "approval.shown", "signal", "nudge"),
    )
)
ALIKE: Final = {
    *(("step.result", "step.checked"), ("step.result", "step.reference")),
    *(("tool.result", "signal"), ("signal", "tool.result")),
}
"""Kinds of cards for which events do not say which of the two it is."""
TABLES: Final = {
    "tasks": (Task, ("id",)),
    "effects": (Effect, ("key",)),
    "approvals": (ApprovalRow, ("id",)),
    "dead_letters": (DeadLetter, ("task_id",)),
    "turn_waiting_tools": (KeptWait, ("turn_id", "tool_call_id")),
}
NOT_IN_THE_LOG: Final = {"turn_waiting_tools": {"place", "is_reported"}}
"""Columns that mean nothing where the waits are kept in their task's row."""


def register(world: World) -> None:
    """Register an agent that leaves a card of each kind, a failing one, and a guarded one."""

    @world.app.agent("everything", retries=0)
    async def everything(ctx: Context, is_first: bool) -> str:
        await ctx.step("plain", lambda: 1)
        await ctx.step("checked", lambda x: x, 2, check_inputs=True)
        for _ in range(3):
            await ctx.step("again", same, 1)
        await ctx.draft("so far")
        await ctx.effect("pay", lambda: "paid", key="pay:1", accept_risk=True)
        if is_first:
            await ctx.tool("person", {"amount": 1})
            await ctx.approve("Pay?", show={"amount": 1})
            await ctx.wait_signal("go")
            await ctx.call("child")
        return "done"

    @world.app.agent("child")
    async def child() -> int:
        return 3

    @world.app.agent("picky", retries=0)
    async def picky(ctx: Context) -> None:
        await ctx.tool("person", {"amount": 2})
        await ctx.step("hopeless", asyncio.sleep, 30, timeout=0.05, on_timeout="permanent")

    @world.app.agent("guarded", approval=Approval(by=("ada", "bob"), quorum=2))
    async def guarded() -> None: ...


def same(value: int) -> int:
    return value


@pytest.fixture
async def full(store_url: str) -> AsyncIterator[World]:
    """A store with a row of each table and a card of each kind, at rest."""
    async with World(store_url, settings=SETTINGS) as world:
        register(world)
        await world.registered("everything", "child", "picky", "guarded")
        worker = await world.started_worker()
        run = asyncio.create_task(worker.run())
        handles = [await world.submitted("everything", True), await world.submitted("picky")]
        waiting = await world.submitted("guarded")
        await world.client.approve(waiting.id, by="ada")
        for handle in handles:
            await world.in_status(handle, SUSPENDED)
            (call,) = await world.store.open_calls(world.namespace, task_id=handle.id)
            await world.client.answer(call.tool_call_id, "yes")
        await world.client.signal(handles[0].id, "go", "now")
        await approved(world, handles[0].id)
        await world.in_status(handles[0], "succeeded")
        await world.in_status(handles[1], "failed")
        await world.in_status(await world.submitted("everything", False), "succeeded")
        await world.in_status(await world.submitted("picky"), SUSPENDED)
        worker.stop()
        await run
        assert await found(world) == set()
        yield world


async def approved(world: World, task_id: str) -> None:
    async def is_asked() -> bool:
        return bool(await world.store.approvals_page(world.namespace, task_id=task_id))

    await eventually(is_asked)
    (asked,) = await world.store.approvals_page(world.namespace, task_id=task_id)
    await world.client.approve(asked.id, by="bob")


async def found(world: World) -> set[str]:
    """What verify finds wrong."""
    return {one["kind"] for one in (await verify(world.store, [world.namespace]))["problems"]}


async def cards(world: World) -> list[Card]:
    """One card of each kind, and of each part that ids of cards name."""
    columns = "namespace, id, task_id, kind, content, hash, created_at"
    rows = await world.sql(f"SELECT {columns} FROM cards WHERE namespace = ? ORDER BY id", world.namespace)
    found = [Card(*row) for row in rows]
    return list({(card.kind, card.id.split(".")[1]): card for card in found}.values())


async def test_the_store_has_a_card_of_each_kind(full: World) -> None:
    assert {card.kind for card in await cards(full)} >= KINDS


async def test_a_card_that_is_changed_with_its_hash_is_found(full: World) -> None:
    for card in await cards(full):
        change = "UPDATE cards SET content = ?, hash = ? WHERE namespace = ? AND id = ?"
        await full.sql(change, FORGED, FORGED_HASH, full.namespace, card.id)
        assert await found(full) == {"content_changed"}, card.id
        await full.sql(change, card.content, card.hash, full.namespace, card.id)
    assert await found(full) == set()


async def test_a_card_with_a_changed_kind_is_found(full: World) -> None:
    change = "UPDATE cards SET kind = ? WHERE namespace = ? AND id = ?"
    for card in await cards(full):
        for kind in KINDS - {card.kind}:
            if (card.kind, kind) in ALIKE:
                continue
            await full.sql(change, kind, full.namespace, card.id)
            assert await found(full) in ({"content_changed"}, {"card_unnamed"}), (card.id, kind)
        await full.sql(change, card.kind, full.namespace, card.id)


async def test_a_missing_card_is_found(full: World) -> None:
    columns = "namespace, id, task_id, kind, content, hash, created_at"
    for card in await cards(full):
        await full.sql("DELETE FROM cards WHERE namespace = ? AND id = ?", full.namespace, card.id)
        assert await found(full) == {"content_missing"}, card.id
        values = msgspec.structs.astuple(card)
        await full.sql(f"INSERT INTO cards ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", *values)


@pytest.mark.parametrize("table", TABLES)
async def test_a_change_in_any_column_of_a_row_is_found(full: World, table: str) -> None:
    struct, key = TABLES[table]
    columns = [field.name for field in msgspec.structs.fields(struct)]  # type: ignore[arg-type]
    where = " AND ".join(f"{name} = ?" for name in key)
    rows = await full.sql(f"SELECT {', '.join(columns)} FROM {table} WHERE namespace = ?", full.namespace)
    assert rows
    for row in rows[:3]:
        values = dict(zip(columns, row, strict=True))
        for name in set(columns) - NOT_IN_THE_LOG.get(table, set()) - {"namespace", *key}:
            change = f"UPDATE {table} SET {name} = ? WHERE namespace = ? AND {where}"
            place = (full.namespace, *(values[each] for each in key))
            try:
                await full.sql(change, another(struct, name, values[name]), *place)
            except (apsw.ConstraintError, asyncpg.IntegrityConstraintViolationError):
                continue  # the database itself refuses it
            assert await found(full), (table, name, values)
            await full.sql(change, values[name], *place)
    assert await found(full) == set()


def another(struct: Any, name: str, value: Any) -> Any:
    """Another possible value of the column."""
    if isinstance(value, bytes):
        return value[:-1] + bytes((value[-1] ^ 1,))
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, int):
        return value + 1
    field = next(one for one in msgspec.structs.fields(struct) if one.name == name)
    return 1 if "int" in str(field.type) else "x"


@pytest.mark.parametrize(
    "change",
    ["type = 'task.created'", "type = 'nonsense'", "data = CAST('half' AS {bytes})", "version = -version"],
)
async def test_an_event_that_can_no_longer_be_read_or_folded_is_found(full: World, change: str) -> None:
    """Also if its log is needed to check the rows of effects."""
    (paid, *_) = await full.sql(
        "SELECT task_id FROM events WHERE namespace = ? AND type = 'effect.intended'", full.namespace
    )
    kind = "blob" if full.app.url.startswith("sqlite") else "bytea"
    await full.sql(
        f"UPDATE events SET {change.format(bytes=kind)} WHERE namespace = ? AND task_id = ? AND version = 2",
        full.namespace,
        paid[0],
    )
    problems = (await verify(full.store, [full.namespace]))["problems"]
    assert {one["task_id"] for one in problems} == {paid[0]}
    assert {one["kind"] for one in problems} & {"changed", "duplicated"}


@pytest.mark.parametrize("table", [name for name in TABLES if name != "tasks"])
async def test_a_missing_row_is_found(full: World, table: str) -> None:
    await full.sql(f"DELETE FROM {table} WHERE namespace = ?", full.namespace)
    kinds = {"effects": "effect", "approvals": "approval", "dead_letters": "dead_letter"}
    assert await found(full) == {f"{kinds.get(table, 'wait')}_missing"}


ADDED: Final[dict[str, Callable[[World], Awaitable[Any]]]] = {
    "approval_unnamed": lambda world: world.sql(
        "INSERT INTO approvals (namespace, id, task_id, remind_at, expire_at, created_at)"
        " VALUES (?, 'zz', 'zz', 1, 1, 1)",
        world.namespace,
    ),
    "dead_letter_unnamed": lambda world: world.sql(
        "INSERT INTO dead_letters (namespace, task_id, agent, reason, fingerprint, retry_count, failed_at)"
        " VALUES (?, '00', 'picky', 'x', 'x', 0, 1)",
        world.namespace,
    ),
    "wait_unnamed": lambda world: world.sql(
        "INSERT INTO turn_waiting_tools (namespace, task_id, turn_id, tool_call_id, kind, deadline,"
        " wait_status, created_at, updated_at) VALUES (?, '00', '00.t1', 'c', 'tool', 1, 'waiting', 1, 1)",
        world.namespace,
    ),
}


@pytest.mark.parametrize("kind", ADDED)
async def test_a_row_without_a_log_is_found(full: World, kind: str) -> None:
    await ADDED[kind](full)
    assert await found(full) == {kind}


async def test_a_task_removed_with_all_its_rows_is_found(full: World) -> None:
    task = next(task for task in await full.store.tasks_page(full.namespace) if task.agent == "child")
    for table, column in (("tasks", "id"), ("events", "task_id"), ("cards", "task_id")):
        await full.sql(f"DELETE FROM {table} WHERE namespace = ? AND {column} = ?", full.namespace, task.id)
    assert await found(full) == {"count_differs"}


async def found_anywhere(world: World) -> set[str]:
    """What verify finds in every namespace of this test that the store knows of."""
    spaces = [each for each in await world.store.known_namespaces() if each.startswith(world.namespace)]
    return {one["kind"] for one in (await verify(world.store, spaces))["problems"]}


async def test_a_namespace_removed_with_all_its_tasks_is_found(full: World) -> None:
    for table in ("tasks", "events", "cards", "effects", "approvals", "dead_letters", "turn_waiting_tools"):
        await full.sql(f"DELETE FROM {table} WHERE namespace = ?", full.namespace)
    assert await found_anywhere(full) == {"count_differs"}


@pytest.mark.parametrize(("table", "kind"), [("effects", "effect_unnamed"), ("cards", "card_unnamed")])
async def test_rows_in_a_namespace_without_tasks_are_found(full: World, table: str, kind: str) -> None:
    struct: Any = {"effects": Effect, "cards": Card}[table]
    columns = [field.name for field in msgspec.structs.fields(struct) if field.name != "namespace"]
    names = ", ".join(columns)
    await full.sql(
        f"INSERT INTO {table} (namespace, {names}) SELECT ?, {names} FROM {table} WHERE namespace = ?",
        f"{full.namespace}-2",
        full.namespace,
    )
    assert await found_anywhere(full) == {kind}
