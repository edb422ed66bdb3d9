"""Changed content and effect rows are found, in the store and in an export."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from endwell import Context
from endwell.errors import Refused
from endwell.model.effect import EFFECT_FIELDS
from endwell.model.moments import SECOND
from endwell.operate.record.verify import verify
from endwell.operate.transfer import export_format
from endwell.operate.transfer.importing import import_lines
from endwell.store.log import Event, hash_of
from tests.operate.test_transfer import another, exported, fill, goes_on, imported, refused
from tests.proof.fuzz.of_store import EXPORT
from tests.support.world import World

FORGED = b'{"forged":true}'
FORGED_HASH = hashlib.sha256(FORGED).hexdigest()


@pytest.fixture
async def full(store_url: str) -> AsyncIterator[World]:
    """A store with a task in each kind of state."""
    async with World(store_url) as world:
        await fill(world)
        assert (await verify(world.store, [world.namespace]))["ok"]
        yield world


async def kinds(world: World) -> set[str]:
    """The kinds of problems that verify finds."""
    return {one["kind"] for one in (await verify(world.store, [world.namespace]))["problems"]}


async def card_of(world: World, kind: str) -> str:
    sql = "SELECT id FROM cards WHERE namespace = ? AND kind = ? ORDER BY id"
    return str((await world.sql(sql, world.namespace, kind))[0][0])


KINDS = ("task.instruction", "task.deliverable", "step.result", "tool.call")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_hash", [False, True], ids=["content", "content-and-hash"])
async def test_changed_content_is_found(full: World, kind: str, with_hash: bool) -> None:
    card_id = await card_of(full, kind)
    changes = "content = ?, hash = ?" if with_hash else "content = ?"
    values = (FORGED, FORGED_HASH) if with_hash else (FORGED,)
    await full.sql(
        f"UPDATE cards SET {changes} WHERE namespace = ? AND id = ?",
        *values,
        full.namespace,
        card_id,
    )
    assert await kinds(full) == {"content_changed"}


@pytest.mark.parametrize("kind", KINDS)
async def test_missing_content_is_found(full: World, kind: str) -> None:
    card_id = await card_of(full, kind)
    await full.sql("DELETE FROM cards WHERE namespace = ? AND id = ?", full.namespace, card_id)
    assert await kinds(full) == {"content_missing"}


@pytest.mark.parametrize("owner", ["", "0", "zzzz"], ids=["a task's", "before all tasks", "behind all tasks"])
async def test_a_card_that_no_event_names_is_found(full: World, owner: str) -> None:
    task_id = owner or (await full.store.tasks_page(full.namespace))[0].id
    columns = "namespace, id, task_id, kind, content, hash, created_at"
    values = (full.namespace, f"{task_id}.draft9", task_id, "task.draft", FORGED, FORGED_HASH)
    await full.sql(f"INSERT INTO cards ({columns}) VALUES (?, ?, ?, ?, ?, ?, 1)", *values)
    assert await kinds(full) == {"card_unnamed"}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("UPDATE effects SET status = 'not_done' WHERE namespace = ?", "effect_differs"),
        ("UPDATE effects SET result_hash = 'x' WHERE namespace = ?", "effect_differs"),
        ("UPDATE effects SET settled_by = 'mallory' WHERE namespace = ?", "effect_differs"),
        ("UPDATE effects SET key = 'pay:2' WHERE namespace = ?", "effect_missing"),
        ("DELETE FROM effects WHERE namespace = ?", "effect_missing"),
    ],
)
async def test_a_changed_effect_is_found(full: World, change: str, kind: str) -> None:
    await full.sql(change, full.namespace)
    assert kind in await kinds(full)


async def test_an_effect_that_no_event_names_is_found(full: World) -> None:
    columns = ", ".join(name for name in EFFECT_FIELDS if name != "key")
    await full.sql(
        f"INSERT INTO effects (key, {columns}) SELECT 'pay:9', {columns} FROM effects WHERE namespace = ?",
        full.namespace,
    )
    assert await kinds(full) == {"effect_unnamed"}


@pytest.mark.parametrize("room", ["s", "a"], ids=["its record", "as it came"])
async def test_a_changed_answer_is_found(full: World, room: str) -> None:
    await goes_on(full)
    sql = "SELECT id FROM cards WHERE namespace = ? AND kind = 'tool.result' AND id LIKE ?"
    ((card_id,),) = await full.sql(sql, full.namespace, f"%.{room}.%oracle%")
    assert await kinds(full) == set()
    change = "UPDATE cards SET content = ?, hash = ? WHERE namespace = ? AND id = ?"
    await full.sql(change, FORGED, FORGED_HASH, full.namespace, card_id)
    assert await kinds(full) == {"content_changed"}


@pytest.mark.parametrize("is_set_back", [False, True], ids=["clock runs", "clock is set back"])
async def test_an_effect_in_the_logs_of_two_tasks_is_whole(world: World, is_set_back: bool) -> None:
    @world.app.agent("payer", retries=0)
    async def payer(ctx: Context, is_first: bool) -> Any:
        def pay() -> str:
            if is_first:
                raise ValueError("the line broke")
            return "paid"

        return await ctx.effect("pay", pay, key="pay:shared")

    worker = await world.started_worker()
    first = await world.submitted("payer", True)
    await world.brought_to(worker, first, "blocked")
    await world.client.settle_effect("pay:shared", "not_done", by="ada", force=True)
    await world.client.actions.cancel(first.id)
    if is_set_back:
        world.clock.set(world.clock.now_us() - 3600 * SECOND)
    second = await world.submitted("payer", False)
    await world.brought_to(worker, second, "succeeded")
    assert await kinds(world) == set()
    await world.sql("UPDATE effects SET version = version + 1 WHERE namespace = ?", world.namespace)
    assert await kinds(world) == {"effect_differs"}


class Forger:
    """Changes an export and makes the hashes fit, as an attacker who knows the format."""

    def __init__(self, file: list[bytes]) -> None:
        self.lines = [export_format.decode_line(line) for line in file]

    def first(self, kind: str) -> int:
        return next(number for number, line in enumerate(self.lines) if getattr(line, kind) is not None)

    def change_card(self, kind: str) -> int:
        """Put another content with its right hash into a card; return the line's number."""
        place = next(n for n, line in enumerate(self.lines) if line.card and line.card.kind == kind)
        card = self.lines[place].card
        assert card is not None
        card.content, card.hash = msgspec.Raw(FORGED), FORGED_HASH
        return place + 1

    def add_card(self, card_id: str, kind: Any = "task.draft") -> int:
        """Add a card, and count it in the last line."""
        place = self.first("card")
        card = self.lines[place].card
        assert card is not None
        more = export_format.CardLine(
            namespace=card.namespace,
            id=card_id.format(task=card.task_id),
            task_id=card.task_id,
            kind=kind,
            content=msgspec.Raw(FORGED),
            hash=FORGED_HASH,
            created_at=card.created_at,
        )
        self.lines.insert(place, export_format.ExportLine(card=more))
        end = self.lines[-1].end
        assert end is not None
        end.cards += 1
        return place + 1

    def change_events(self, change: Any, type_: str = "task.created") -> int:
        """Change the first event of this type, and hash the whole chain again."""
        heads: dict[str, bytes] = {}
        changed = 0
        for number, line in enumerate(self.lines):
            if line.event is None:
                continue
            event = export_format.event_of(line.event)
            if event.type == type_ and not changed:
                changed, data = number + 1, json.loads(event.data)
                values = {**msgspec.structs.asdict(event), **(change(data) or {})}
                event = Event(**{**values, "data": json.dumps(data, separators=(",", ":")).encode()})
            sealed = hash_of(event, heads.get(event.task_id, b""))
            heads[event.task_id] = sealed
            self.lines[number] = export_format.event_line(msgspec.structs.replace(event, hash=sealed))
        return changed

    @property
    def file(self) -> list[bytes]:
        return [export_format.encode_line(line) for line in self.lines]


@pytest.fixture
async def forger(sqlite_url: str) -> AsyncIterator[tuple[World, Forger]]:
    """A forger of an export that has all kinds of tasks."""
    async with World(sqlite_url) as world:
        await fill(world)
        yield world, Forger(await exported(world))


Forged = tuple[World, Forger]


async def test_an_unchanged_file_is_imported(forger: Forged, tmp_path: Path) -> None:
    world, forged = forger
    forged.change_events(lambda data: None)
    async with another(tmp_path, world.namespace) as other:
        assert (await imported(other, forged.file))["tasks"] == 5


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_with_changed_content_is_refused(forger: Forged, tmp_path: Path, kind: str) -> None:
    world, forged = forger
    forged.change_card(kind)
    await refused(world, tmp_path, forged.file, r"^line \d+: .*the content of card .* was changed")


async def test_a_file_with_a_card_of_another_kind_is_refused(forger: Forged, tmp_path: Path) -> None:
    world, forged = forger
    for line in forged.lines:
        if line.card is not None and line.card.kind == "step.result":
            line.card.kind = "step.failure"
    await refused(world, tmp_path, forged.file, r"^line \d+: .*the kind of card .* was changed")


@pytest.mark.parametrize(
    ("type_", "field", "value"),
    [
        ("task.created", "owner", "ada\nbob"),
        ("task.created", "parent_id", "t\r\nx: y"),
        ("task.created", "retry_policy", "no policy"),
        ("task.created", "family", "no family"),
        ("task.created", "family", '{"parent_agent":"a\\nb"}'),
        ("task.claimed", "session_id", "s\x1b[2J"),
        ("task.dispatched", "turn_id", "t\n"),
        ("effect.intended", "step", "1:()pay\n#1"),
        ("step.recorded", "step", "\x85"),
    ],
)
async def test_a_file_with_unprintable_ids_and_names_is_refused(
    forger: Forged, tmp_path: Path, type_: str, field: str, value: str
) -> None:
    world, forged = forger
    number = forged.change_events(lambda data: data.update({field: value}), type_)
    assert number
    await refused(world, tmp_path, forged.file, rf"^line {number}: ")


async def test_a_file_with_a_card_that_no_event_names_is_refused(forger: Forged, tmp_path: Path) -> None:
    world, forged = forger
    number = forged.add_card("{task}.draft9")
    await refused(world, tmp_path, forged.file, rf"^line {number}: no event names this card")


@pytest.mark.parametrize("card_id", ["elsewhere.in", "{task}"])
async def test_a_card_of_another_task_is_refused(forger: Forged, tmp_path: Path, card_id: str) -> None:
    world, forged = forger
    number = forged.add_card(card_id)
    await refused(world, tmp_path, forged.file, rf"^line {number}: .*does not belong to task")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data.update(channel="main\nPUB evil 0"), "is not a valid channel name"),
        (lambda data: data.update(agent="../clerk"), "is not a valid agent name"),
        (lambda data: data.update(agent_key="a b"), "is not a valid agent key"),
        (lambda data: data.update(key="a b"), "is not a valid idempotency key"),
        (lambda data: data.update(run_at=2**63), "out of range|too large"),
        (lambda data: data.update(owner="a\0b"), "not printable"),
        (lambda data: {"actor": "a\0b"}, "zero byte"),
        (lambda data: {"epoch": 2**63}, "too large"),
        (lambda data: {"schema": 99}, "schema 99"),
        (lambda data: {"type": "task.claimed"}, ""),
    ],
)
async def test_a_file_with_names_that_submit_would_refuse_is_refused(
    forger: Forged, tmp_path: Path, change: Any, problem: str
) -> None:
    world, forged = forger
    number = forged.change_events(change)
    await refused(world, tmp_path, forged.file, rf"^line {number}: .*({problem})")


async def test_an_effect_that_was_never_intended_is_refused(forger: Forged, tmp_path: Path) -> None:
    world, forged = forger
    number = forged.change_events(lambda data: data.update(key="pay:other"), "effect.done")
    await refused(world, tmp_path, forged.file, rf"^line {number}: .*never intended")


async def test_two_tasks_with_one_key_are_refused(forger: Forged, tmp_path: Path) -> None:
    world, forged = forger
    forged.change_events(lambda data: data.update(key="order-1"))
    await refused(world, tmp_path, forged.file, r"^line \d+: .*another task has the key order-1")


async def test_an_endless_line_is_refused_before_it_is_read_whole(forger: Forged, tmp_path: Path) -> None:
    world, forged = forger
    file = tmp_path / "long.jsonl"
    with file.open("wb") as target:
        target.write(forged.file[0])
        target.seek(export_format.LONGEST * 3, 1)
        target.write(b"\n")
    with file.open("rb") as source:
        read = list(map(len, islice(export_format.split_lines(source), 2)))
    assert read == [len(forged.file[0]), export_format.LONGEST + 1]
    long = [forged.file[0], b"x" * (export_format.LONGEST + 1)]
    await refused(world, tmp_path, long, r"^line 2: the line is longer than")


async def test_importing_the_same_record_again_changes_nothing(full: World) -> None:
    file = await exported(full)
    before = await full.store.log_end()
    answer = await imported(full, file)
    assert (answer["already_there"], answer["tasks"]) == (True, 5)
    assert await full.store.log_end() == before
    assert await exported(full) == file


async def test_interrupted_import_says_what_it_leaves_behind(
    full: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = await exported(full)
    this, passes = asyncio.current_task(), count()
    assert this is not None

    def read() -> Iterator[bytes]:
        if next(passes) == 1:  # every line was checked, and now they are written
            this.cancel()
        return iter(file)

    async with another(tmp_path, "default") as other:
        with pytest.raises(asyncio.CancelledError):
            await import_lines(other.store, read, other.app.runtime.ids.new)
        this.uncancel()
    assert "this store has the first 0 events or a few more; import the file into a new store" in caplog.text


async def test_an_export_of_an_earlier_release_is_taken(tmp_path: Path) -> None:
    async with another(tmp_path, "default") as other:
        await imported(other, EXPORT.read_bytes().splitlines(keepends=True))
        assert (await verify(other.store, ["default"]))["ok"]


async def test_importing_a_record_with_changed_content_again_is_refused(full: World) -> None:
    file = await exported(full)
    card_id = await card_of(full, "task.instruction")
    await full.sql(
        "UPDATE cards SET content = ? WHERE namespace = ? AND id = ?", FORGED, full.namespace, card_id
    )
    with pytest.raises(Refused, match="has tasks already"):
        await imported(full, file)
