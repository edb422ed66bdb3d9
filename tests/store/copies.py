"""The record of a store as each of its readers sees it: export, import, tail and relay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from endwell.operate.record.verify import verify
from endwell.operate.transfer.exporting import export
from endwell.operate.transfer.importing import import_lines
from endwell.pmo.relay.messages import Outgoing
from endwell.pmo.relay.service import Relay
from endwell.runtime import Runtime
from endwell.settings import RelaySettings as RelaySettings
from endwell.store.contract import Store
from endwell.store.log import Event
from tests.store.world import Database, PostgresDatabase, SqliteDatabase, World

WRITTEN = """
INSERT INTO events (namespace, task_id, version, type, schema, command_id, actor, at, epoch, data, hash)
VALUES ('default', $1, 1, 'task.created', 1, 'c', '', 1, 0, '{}', '')
"""
"""An event that another program writes, of a task that there is not."""


class Collected:
    """A receiver of the relay that keeps the ids of what it was sent."""

    shown = "collected"

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def send(self, messages: Sequence[Outgoing]) -> None:
        self.ids += [message.id for message in messages]

    async def close(self) -> None: ...


async def tail(store: Store, cursor: str = "") -> list[Event]:
    """The log as a follower reads it, in small pages."""
    seen = []
    while page := await store.events_after("default", cursor, 7):
        seen += [one.event for one in page]
        cursor = page[-1].cursor
    return seen


async def relayed(store: Store) -> list[str]:
    """What the relay sends from where its cursor is; the cursor stays where it then is."""
    sink = Collected()
    relay = Relay(store, sink, Runtime.system(), RelaySettings(batch=10), namespace="default", name="r")
    await relay.run_once()
    await relay.close()
    return sink.ids


async def exported(store: Store) -> list[bytes]:
    lines: list[bytes] = []
    await export(store, ["default"], lines.append)
    return lines


async def imported(database: Database, lines: list[bytes]) -> World:
    """A store of its own, made from an export."""
    world = World(database)
    await world.open()
    await import_lines(world.store, lambda: lines, world.new_id)
    return world


async def check_copies(world: World, expected: list[Event], sqlite: Path, postgres: str) -> None:
    """Every reader of this store, and stores made from its export, agree on these events, in this order."""
    assert await tail(world.store) == expected
    assert (await verify(world.store, ["default"]))["problems"] == []
    lines = await exported(world.store)
    messages: list[list[str]] = []
    for database in (SqliteDatabase(sqlite), PostgresDatabase(postgres)):
        copy = await imported(database, lines)
        assert await tail(copy.store) == expected
        assert (await verify(copy.store, ["default"]))["problems"] == []
        messages.append(await relayed(copy.store))
        assert (await exported(copy.store)) == lines
        await copy.close()
    assert messages[0] == messages[1]
    assert [each.rpartition(".")[0] for each in messages[0]] == sorted(
        (each.rpartition(".")[0] for each in messages[0]),
        key=[event.event_id for event in expected].index,
    )
