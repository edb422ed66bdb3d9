"""Malformed entries become dead letters with the reason; they stop no process and are never lost."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.model import commands as c
from endwell.streams.entries import (
    MAX_ENTRY_BYTES,
    Malformed,
    malformed_letter,
    read_report,
    read_task,
)
from endwell.streams.protocol import TASK_FIELDS
from tests.patience import PATIENCE_SECONDS
from tests.streams.streamed import Streamed
from tests.support.world import eventually

GOOD: dict[str, Any] = {"task_id": "t", "tool_name": "clerk", "payload": "1", "turn": "t.t1", "epoch": 1}


@pytest.mark.covers("S4.5", "S4.37", "S4.38", "T17")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hello": "world"}, "missing_fields"),
        ({**GOOD, "turn": ""}, "missing_fields"),
        ({**GOOD, "epoch": "-3"}, "bad_field"),
        ({**GOOD, "payload": b"\xff\xfe"}, "not_utf8"),
        ({**GOOD, "payload": "{not json"}, "bad_payload"),
        (dict.fromkeys(TASK_FIELDS, "t") | {**GOOD, "payload": "[1, 2"}, "bad_payload"),
        ({**GOOD, "payload": b"x" * (MAX_ENTRY_BYTES + 1)}, "oversized_entry"),
    ],
)
async def test_malformed_entry_becomes_a_dead_letter_and_the_next_good_one_is_done(
    streamed: Streamed, fields: dict[str, Any], reason: str
) -> None:
    world = streamed.world

    @world.app.agent("clerk")
    async def clerk() -> str:
        return "done"

    await world.working()
    await streamed.supervised()
    message_id = await streamed.put(**fields)

    async def is_told() -> bool:
        return len(await streamed.letters()) == 1

    await eventually(is_told, "the entry is a dead letter")
    (letter,) = await streamed.letters()
    assert (letter["reason"], letter["message_id"]) == (reason, message_id)
    assert letter["error"]
    assert letter["failed_at"].endswith("Z")
    assert len(letter["payload"]) <= 1000, "what is too large is not copied"
    assert await (await world.submitted("clerk")).result(PATIENCE_SECONDS) == "done"
    await streamed.nothing_pending()


@pytest.mark.covers("T17")
async def test_void_entry_is_acknowledged_and_does_nothing(streamed: Streamed) -> None:
    world, runs = streamed.world, []

    @world.app.agent("clerk")
    async def clerk() -> str:
        runs.append(1)
        return "done"

    await world.working()
    await streamed.supervised()
    handle = await world.submitted("clerk")
    await handle.result(PATIENCE_SECONDS)
    task = await handle.task()
    ended = {**GOOD, "task_id": task.id, "turn": f"{task.id}.t1"}
    for epoch in (0, 1, 2, task.epoch, task.epoch + 1, 10**16):
        await streamed.put(**{**ended, "epoch": epoch})
    await streamed.put(**GOOD)  # of an unknown task
    await streamed.nothing_pending()
    assert len(runs) == 1
    assert await streamed.letters() == []
    assert (await world.history(handle))[-1] == "task.succeeded"


async def test_worker_takes_the_payload_from_the_store_if_the_entry_was_changed(streamed: Streamed) -> None:
    """A client of the server can change an entry, but not what a worker executes."""
    world = streamed.world

    @world.app.agent("payer")
    async def payer(amount: int) -> int:
        return amount

    await world.registered("payer")
    session = await world.silent_session("payer", concurrency=1)
    streams = await streamed.orchestrator()
    handle = await world.submitted("payer", 5)
    assert await streams.publisher.publish_ready() == 1
    ((message_id, fields),) = await streamed.entries(streamed.names.task)
    await streamed.redis.ask("XDEL", streamed.names.task, message_id)
    await streamed.put(**{**fields, "payload": "5000000"})
    assert session.id
    await world.working()
    assert await handle.result(PATIENCE_SECONDS) == 5


async def test_offer_that_every_worker_passes_on_causes_no_hot_loop(streamed: Streamed) -> None:
    world = streamed.world

    @world.app.agent("clerk")
    async def clerk() -> str:
        return "done"

    @world.app.agent("baker")
    async def baker() -> str:
        return "bread"

    await world.registered("clerk", "baker")
    await world.silent_session("baker", concurrency=1)  # it has room, and never reads
    await world.working(agents=["clerk"])
    pmo = await streamed.supervised()
    assert pmo.streams is not None
    publisher = pmo.streams.publisher
    handle = await world.submitted("baker")

    async def is_passed() -> bool:
        return sum(publisher._passes.values()) >= 3

    await eventually(is_passed, "the clerk passed it on")
    assert await (await world.submitted("clerk")).result(PATIENCE_SECONDS) == "done"
    assert (await handle.task()).status == "queued"
    await world.working(await world.another_node(), agents=["baker"], name="baker-1")
    assert await handle.result(PATIENCE_SECONDS) == "bread"


async def test_offer_of_a_tool_without_any_worker_becomes_a_dead_letter(streamed: Streamed) -> None:
    @streamed.world.app.agent("clerk")
    async def clerk() -> None: ...

    await streamed.world.working()
    await streamed.supervised()
    message_id = await streamed.put(**{**GOOD, "tool_name": "nonesuch", "payload": '{"a": 1}'})

    async def is_told() -> bool:
        return len(await streamed.letters()) == 1

    await eventually(is_told, "the entry is a dead letter")
    (letter,) = await streamed.letters()
    assert (letter["reason"], letter["tool_name"]) == ("unknown_tool", "nonesuch")
    assert (letter["message_id"], letter["stream"]) == (message_id, "stream:task")
    assert letter["payload"] == '{"a": 1}', "it can be replayed once a worker serves it"
    await streamed.nothing_pending()


def test_reading_an_entry_never_raises() -> None:
    for raw in (None, [], [b"a"], [b"\xff", b"\x00"], [b"task_id", b"t", b"task_id"], [b""] * 7):
        for read in (read_task, read_report):
            found = read("1-1", raw)
            assert isinstance(found, Malformed)
            assert len(malformed_letter(found, "now")) % 2 == 0


SAID: dict[str, Any] = {**GOOD, "status": "claimed", "worker_id": "w-1", "message_id": "5-0"}


@pytest.mark.covers("T17")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_id", "a\x00b"),  # PostgreSQL takes no such text: it would fail for ever
        ("turn", "t" * 301),
        ("worker_id", "w\n1"),
        ("attempt", "a\x00"),
        ("message_id", "garbage"),  # the server would refuse to acknowledge it, for ever
        ("message_id", "99999999999999999999-0"),
        ("status", "bored"),
        ("epoch", "٣"),
    ],
)
def test_field_that_no_store_can_take_makes_an_entry_malformed(name: str, value: str) -> None:
    def raw(fields: dict[str, Any]) -> list[bytes]:
        return [str(part).encode() for pair in fields.items() for part in pair]

    assert not isinstance(read_report("1-1", raw(SAID)), Malformed)
    bad = read_report("1-1", raw({**SAID, name: value}))
    assert isinstance(bad, Malformed)
    assert bad.reason == "bad_field"
    assert name in bad.problem
    if name in GOOD:
        assert isinstance(read_task("1-1", raw({**GOOD, name: value})), Malformed)


async def test_foreign_worker_with_an_impossible_name_is_ignored(streamed: Streamed) -> None:
    streams = await streamed.orchestrator()
    for name in ("w-1", "bad\x00name"):
        await streamed.redis.ask("SADD", streamed.names.workers, name)
        await streamed.redis.ask("SET", streamed.names.worker_key(name), '{"tools": ["resize"]}', "EX", 60)
    assert [worker.name for worker in await streams.streams.registrations.all_live()] == ["w-1"]


@pytest.mark.parametrize("limit", [None, 1])  # published early, and dispatched first
async def test_claim_is_granted_only_for_the_current_offer(streamed: Streamed, limit: int | None) -> None:
    world = streamed.world

    @world.app.agent("clerk", concurrency=limit)
    async def clerk() -> None: ...

    await world.registered("clerk")
    session = await world.silent_session("clerk", concurrency=1)
    streams = await streamed.orchestrator()
    handle = await world.submitted("clerk")
    assert await streams.publisher.publish_ready() == 1
    ((_, fields),) = await streamed.entries(streamed.names.task)
    task, right, right_epoch = await handle.task(), fields["turn"], int(fields["epoch"])

    def claim(turn: str, epoch: int) -> c.Claim:
        named: dict[str, Any] = {
            "task_id": task.id,
            "session_id": session.id,
            "turn_id": turn,
            "epoch": epoch,
        }
        return c.Claim(command_id=f"{turn}{epoch}", namespace=world.namespace, attempt_id="a.0", **named)

    wrong = ((right, right_epoch - 1), (right, right_epoch + 1), (f"{task.id}.t9", right_epoch))
    for turn, epoch in wrong:
        (reply,) = await world.store.commit((claim(turn, epoch),))
        assert reply.refusal is not None
        assert reply.refusal.code == "stale_offer"
    (reply,) = await world.store.commit((claim(right, right_epoch),))
    assert reply.refusal is None
