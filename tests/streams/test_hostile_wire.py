"""One client of the Redis server writes what cannot be read: the work of all others continues."""

from __future__ import annotations

import pytest

from endwell.streams import foreign_keys
from endwell.streams.orchestrator.service import StreamOrchestratorService
from endwell.streams.protocol import WORKERS_GROUP
from tests.streams.hand import Hand
from tests.streams.streamed import Streamed
from tests.streams.test_reclaiming import left_by_a_dead_worker

DEEP = b'{"x":' + b"[" * 100_000
HOSTILE_JSON = (
    DEEP,
    b'{"message":' + DEEP + b"}",
    b'{"tools":["press"],"slots":' + b"9" * 10_000 + b"}",
    b'{"tools":["press"],"slots":1e999}',
    b'{"tools":["\\ud800"]}',
    b'{"tools":[7]}',
    b"\xff\xfe",
    b"\0",
    b"null",
)
"""What a decoder may raise on: too deep, too large, not UTF-8, half a character, of the wrong type."""
HOSTILE_NAMES = (b"\xff\xfe", b"a\0b", b"x" * 100_000, "a\u2028b".encode())


async def keep_up(streamed: Streamed, streams: StreamOrchestratorService) -> None:
    """One whole round of the orchestrator's upkeep."""
    streams._is_leader = True
    streams._kept_up_at = float("-inf")
    await streams.keep_up()


@pytest.mark.parametrize("text", HOSTILE_JSON, ids=range(len(HOSTILE_JSON)))
async def test_unreadable_registration_stops_no_other_worker(streamed: Streamed, text: bytes) -> None:
    hand = Hand(streamed, await streamed.orchestrator())
    names = streamed.names
    await streamed.redis.ask("SADD", names.workers, "mallory-1", b"\xff")
    await streamed.redis.ask("SET", names.worker_key("mallory-1"), text)
    handle = await hand.offered()
    for said in ({"error": text}, {"output": text, "note": text}):
        for status in ("failed", "succeeded", "progress", "returned"):
            forged = {"task_id": handle.id, "turn": "t", "epoch": 1, "attempt": "a", "message_id": "1-1"}
            await streamed.add(names.result, **forged, worker_id="mallory-1", status=status, **said)
    attempt, granted = await hand.asks()
    assert granted == attempt
    await keep_up(streamed, hand.streams)
    assert (await handle.task()).status == "running"
    assert await streamed.entries(names.result) == [], "all of it was heard"
    assert await streamed.redis.ask("SISMEMBER", names.workers, b"\xff") == 0, "and forgotten"


async def test_orchestrator_reads_a_bounded_number_and_size_of_registrations(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_keys, "MAX_WORKERS", 20)
    streams, names = await streamed.orchestrator(), streamed.names
    said = f'{{"tools":["{"x" * 40_000}"]}}'
    for name, text in (("long-1", said), *((f"w-{n}", '{"tools":["press"]}') for n in range(60))):
        await streamed.redis.ask("SADD", names.workers, name)
        await streamed.redis.ask("SET", names.worker_key(name), text)
    assert await streams.streams.registrations.find("long-1") is None, "it says more than a worker needs to"
    assert len(await streams.streams.registrations.all_live()) in (19, 20)
    left = await streamed.redis.ask("SRANDMEMBER", names.workers, 100)
    assert len(left) >= 60, "those that were not looked at are looked at later"


async def test_worker_key_of_the_wrong_type_stops_no_other_worker(streamed: Streamed) -> None:
    hand = Hand(streamed, await streamed.orchestrator())
    names = streamed.names
    await streamed.redis.ask("SADD", names.workers, "mallory-1")
    await streamed.redis.ask("HSET", names.worker_key("mallory-1"), "tools", "press")
    handle = await hand.offered()
    forged = {"task_id": handle.id, "turn": hand.task["turn"], "epoch": 1, "message_id": "1-1"}
    await streamed.add(names.result, **forged, worker_id="mallory-1", status="claimed")
    attempt, granted = await hand.asks()
    assert granted == attempt


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
async def test_turn_is_reclaimed_from_a_consumer_with_an_unreadable_name(
    on_each_store: Streamed, name: bytes
) -> None:
    streamed = on_each_store
    streams, (handle,) = await left_by_a_dead_worker(streamed)
    ((message_id, _, _),) = await streamed.pending()
    claim = ("XCLAIM", streamed.names.task, WORKERS_GROUP, name, 0, message_id)
    await streamed.redis.ask(*claim, "IDLE", 3_600_000, "JUSTID")
    await keep_up(streamed, streams)
    (fact,) = await streamed.world.facts(handle, "task.reclaimed")
    assert 0 < len(fact.old_consumer) <= 300
    assert (await handle.task()).status == "queued"
    streams._silent_ms = -1
    await keep_up(streamed, streams)
    rows = await streamed.redis.ask("XINFO", "CONSUMERS", streamed.names.task, WORKERS_GROUP)
    assert name not in [row[1] for row in rows], "it has nothing left, and is forgotten"


async def test_unreadable_grants_are_ignored(streamed: Streamed) -> None:
    hand = Hand(streamed, await streamed.orchestrator())
    await hand.offered()
    forged: list[tuple[str | bytes, str | bytes]] = [
        ("t:" + "9" * 5_000, "x"),
        ("t:\u00b2", "x"),
        (b"\xff:1", b"\xff"),
        ("t:1", b"a\0b"),
        ("", ""),
    ]
    for field, value in forged:
        await streamed.redis.ask("HSET", streamed.names.grants, field, value)
    attempt, granted = await hand.asks()
    await keep_up(streamed, hand.streams)
    assert granted == attempt == await hand.grant()


@pytest.mark.parametrize("text", [b"\xff", b"", b"nonsense", b"9" * 5_000, b"-1", b"1:2:3"], ids=range(6))
async def test_unreadable_cursors_stop_neither_reclaims_nor_results(streamed: Streamed, text: bytes) -> None:
    streams, (handle,) = await left_by_a_dead_worker(streamed)
    names = streamed.names
    for key in (names.results_cursor, names.dead_letters_cursor):
        await streamed.redis.ask("SET", key, text)
    await keep_up(streamed, streams)
    assert (await handle.task()).status == "queued"
    await handle.cancel()
    streams._has_ended.set()
    await keep_up(streamed, streams)
    later, *_ = await streamed.world.client.submit_many("clerk", [1])
    await later.cancel()
    streams._has_ended.set()
    await keep_up(streamed, streams)
    published = [fields["task_id"] for _, fields in await streamed.entries(names.result)]
    assert later.id in published
