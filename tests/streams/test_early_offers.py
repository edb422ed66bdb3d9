"""Offers that are published before their dispatch: each is claimed once, by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from endwell.model import commands as c
from endwell.operate.doctor import streams as doctor_streams
from endwell.operate.doctor.finding import Patient
from endwell.store.claim_position import FROM_START_SECONDS
from endwell.store.rows import Reply
from endwell.streams.orchestrator import publisher
from endwell.streams.orchestrator.service import StreamOrchestratorService
from endwell.streams.protocol import WORKERS_GROUP
from tests.streams.streamed import Streamed
from tests.support.world import Session, eventually


class EarlyPublishing:
    """An orchestrator, and a worker with some slots that does nothing by itself."""

    def __init__(self, streamed: Streamed, streams: StreamOrchestratorService, worker: Session) -> None:
        self.streamed = streamed
        self.world = streamed.world
        self.streams = streams
        self.worker = worker

    async def submit(self, *numbers: int, **options: Any) -> list[str]:
        return [(await self.world.submitted("clerk", number, **options)).id for number in numbers]

    async def on_the_stream(self) -> list[dict[str, str]]:
        return [fields for _, fields in await self.streamed.entries(self.streamed.names.task)]

    async def payloads(self) -> list[str]:
        return [fields["payload"] for fields in await self.on_the_stream()]

    async def statuses(self, ids: Sequence[str]) -> list[str]:
        tasks = {t.id: t for t in await self.world.store.tasks_by_ids(self.world.namespace, ids)}
        return [tasks[task_id].status for task_id in ids]

    async def claim(self, fields: dict[str, str]) -> Reply:
        command = c.Claim(
            command_id=(attempt := self.world.app.runtime.ids.new()),
            namespace=self.world.namespace,
            actor="test",
            task_id=fields["task_id"],
            attempt_id=attempt,
            session_id=self.worker.id,
            turn_id=fields["turn"],
            epoch=int(fields["epoch"]),
        )
        (reply,) = await self.world.store.commit((command,))
        return reply

    async def say(self, kind: type[c.AttemptCommand], reply: Reply, **options: Any) -> None:
        task = reply.unwrap()
        basics = {"command_id": self.world.app.runtime.ids.new(), "namespace": self.world.namespace}
        await self.world.store.commit_one(
            kind(**basics, task_id=task.id, attempt_id=task.attempt_id or "", **options)
        )


async def opened(streamed: Streamed, **options: Any) -> EarlyPublishing:
    @streamed.app.agent("clerk", **options)
    async def clerk(number: int) -> int:
        return number

    await streamed.world.registered("clerk")
    worker = await streamed.world.silent_session("clerk", concurrency=4)
    return EarlyPublishing(streamed, await streamed.orchestrator(), worker)


@pytest.fixture(autouse=True)
def no_offers_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for as many offers as there are slots, at any pace."""
    monkeypatch.setattr(publisher, "AHEAD_SECONDS", 0.0)


@pytest.fixture
async def hall(on_each_store: Streamed) -> EarlyPublishing:
    return await opened(on_each_store)


async def test_early_offer_is_dispatched_and_claimed_in_one_commit(
    hall: EarlyPublishing,
) -> None:
    (task_id,) = await hall.submit(7)
    assert await hall.streams.publisher.publish_ready() == 1
    assert await hall.statuses([task_id]) == ["queued"]
    (fields,) = await hall.on_the_stream()
    assert (fields["task_id"], fields["payload"], fields["step_index"]) == (task_id, "7", "1")
    task = (await hall.claim(fields)).unwrap()
    assert (task.status, task.turn_id, task.epoch) == ("running", fields["turn"], int(fields["epoch"]))
    types = [event.type for event in await hall.world.store.events_of_task(hall.world.namespace, task_id)]
    assert types == ["task.created", "task.dispatched", "task.claimed"]
    assert task.dispatch_count == 1


async def test_offer_published_twice_is_claimed_once(hall: EarlyPublishing) -> None:
    await hall.submit(1)
    await hall.streams.publisher.publish_ready()
    hall.streams.publisher.forget_published()  # as in a new orchestrator
    assert await hall.streams.publisher.publish_ready() == 1
    first, second = await hall.on_the_stream()
    assert first == second
    replies = await asyncio.gather(hall.claim(first), hall.claim(second))
    assert sorted(reply.refusal is None for reply in replies) == [False, True]
    (refusal,) = [reply.refusal for reply in replies if reply.refusal is not None]
    assert refusal.code in ("stale_offer", "wrong_status")


async def test_task_without_its_card_does_not_stop_the_publishing_of_others(hall: EarlyPublishing) -> None:
    spoiled, _ = await hall.submit(1, 2)
    await hall.world.sql("DELETE FROM cards WHERE task_id = ?", spoiled)
    assert await hall.streams.publisher.publish_ready() == 2
    assert await hall.payloads() == ["null", "2"]


async def test_early_offers_take_room_until_their_turns_end(hall: EarlyPublishing) -> None:
    await hall.submit(*range(6))
    assert await hall.streams.publisher.publish_ready() == 4
    assert await hall.streams.publisher.publish_ready() == 0, "four slots, four turns that wait for them"
    first, *_ = await hall.on_the_stream()
    held = await hall.claim(first)
    assert await hall.streams.publisher.publish_ready() == 0, "one of them is held now"
    await hall.say(c.Finish, held, result=b"0", result_hash="h")
    assert await hall.streams.publisher.publish_ready() == 1
    assert await hall.payloads() == ["0", "1", "2", "3", "4"], "each once, in their order"


async def test_urgent_task_is_published_before_older_ones(hall: EarlyPublishing) -> None:
    await hall.submit(*range(6))
    await hall.streams.publisher.publish_ready()
    for fields in await hall.on_the_stream():
        await hall.say(c.Finish, await hall.claim(fields), result=b"0", result_hash="h")
    await hall.submit(9, priority=3)
    assert await hall.streams.publisher.publish_ready() == 3
    assert (await hall.payloads())[4:] == ["9", "4", "5"]


async def test_early_offers_continue_behind_the_last_one_and_begin_at_the_start_now_and_then(
    hall: EarlyPublishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, places = hall.streams.publisher, list[str | None]()
    ready_turns = hall.world.store.ready_turns

    async def noted(namespace: str, agent: str, limit: int, after: Any) -> Any:
        places.append(after.id)
        return await ready_turns(namespace, agent, limit, after)

    monkeypatch.setattr(publisher._early._store, "ready_turns", noted)
    ids = await hall.submit(*range(12))
    early = publisher._early
    for start in (0, 3, 6):
        found = await early.find("clerk", 3)
        assert [turn.task_id for turn in found or ()] == ids[start : start + 3]
        early.record(found or ())
    assert places == [None, ids[2], ids[5]]
    held = await hall.claim({"task_id": ids[0], "turn": f"{ids[0]}.t1", "epoch": "1"})
    await hall.say(c.HandBack, held)
    key = (hall.world.namespace, "clerk")
    place, since = early._position._positions[key]
    early._position._positions[key] = place, since - FROM_START_SECONDS - 0.1
    found = await early.find("clerk", 2)
    assert [turn.task_id for turn in found or ()] == [ids[0], ids[9]], "it came back, and goes first"
    assert places[3:] == [None]


async def test_turn_that_is_handed_back_is_published_as_another_offer(hall: EarlyPublishing) -> None:
    await hall.submit(1)
    await hall.streams.publisher.publish_ready()
    (first,) = await hall.on_the_stream()
    await hall.say(c.HandBack, await hall.claim(first))
    assert await hall.streams.publisher.publish_ready() == 1
    _, second = await hall.on_the_stream()
    assert second["turn"] == first["turn"]
    assert int(second["epoch"]) > int(first["epoch"])
    late = await hall.claim(first)
    assert late.refusal is not None
    assert late.refusal.code == "stale_offer"
    assert (await hall.claim(second)).refusal is None


@pytest.mark.parametrize("why", ["a limit", "an agent key", "a crash that would be the last but one"])
async def test_turns_that_need_a_slot_a_key_or_care_are_dispatched_before_they_are_published(
    on_each_store: Streamed, why: str
) -> None:
    hall = await opened(on_each_store, concurrency=2 if why == "a limit" else None)
    agent = "clerk/one" if why == "an agent key" else "clerk"
    ids = [(await hall.world.submitted(agent, number)).id for number in range(3)]
    if why.startswith("a crash"):
        most = hall.world.app.settings.pmo.crash_limit
        await hall.world.sql("UPDATE tasks SET crash_count = ? WHERE id = ?", most - 1, ids[0])
    count = await hall.streams.publisher.publish_ready()
    assert await hall.statuses(ids) == ["dispatched"] * count + ["queued"] * (3 - count)
    assert count == {"a limit": 2, "an agent key": 1}.get(why, 3)
    assert len(await hall.on_the_stream()) == count


async def test_early_offer_that_is_dispatched_later_is_not_published_twice(hall: EarlyPublishing) -> None:
    (plain,) = await hall.submit(1)
    assert await hall.streams.publisher.publish_ready() == 1
    keyed = await hall.world.submitted("clerk/one", 2)
    assert await hall.streams.publisher.publish_ready() == 2
    assert await hall.statuses([plain, keyed.id]) == ["dispatched", "dispatched"]
    first, second = await hall.on_the_stream()
    assert (first["task_id"], second["task_id"]) == (plain, keyed.id)
    assert (await hall.claim(first)).refusal is None, "its dispatch has the name of the early offer"


async def test_offer_published_while_claims_are_looked_up_is_remembered(
    hall: EarlyPublishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = hall.streams.publisher._early
    epochs_of_queued = hall.world.store.epochs_of_queued
    await hall.submit(1)
    await hall.streams.publisher.publish_ready()

    async def answered_late(namespace: str, ids: Sequence[str]) -> Any:
        found = await epochs_of_queued(namespace, ids)
        await hall.submit(2)
        early.record(await early.find("clerk", 1) or ())
        return found

    monkeypatch.setattr(early._store, "epochs_of_queued", answered_late)
    await early.forget_claimed()
    assert early.count_by_agent() == {"clerk": 2}


async def test_waiting_reader_gets_all_offers_that_are_published_together(hall: EarlyPublishing) -> None:
    """Otherwise a worker would claim the first one alone."""
    waiting, names = hall.world.app.open_redis(blocking=True), hall.streamed.names
    words = ("XREADGROUP", "GROUP", WORKERS_GROUP, "reader", "COUNT", 10, "BLOCK", 20_000)
    reading = asyncio.create_task(waiting.ask(*words, "STREAMS", names.task, ">"))

    async def is_waiting() -> bool:
        found = await hall.streamed.redis.ask("XINFO", "CONSUMERS", names.task, WORKERS_GROUP)
        return any(b"reader" in consumer for consumer in found)

    await eventually(is_waiting, "the reader waits")
    await hall.submit(1, 2, 3)
    await hall.streams.publisher.publish_ready()
    ((_, entries),) = await reading
    assert len(entries) == 3
    await waiting.close()


async def test_doctor_expects_early_offers_on_the_stream(
    hall: EarlyPublishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_streams, "SPARE_ENTRIES", 0)
    patient = Patient(
        store=hall.world.store,
        bell=hall.world.node.bell.health(),
        clock=hall.world.app.runtime.clock,
        settings=hall.world.app.settings,
        namespaces=(hall.world.namespace,),
        connect_stream=hall.world.app.open_redis,
    )
    await hall.submit(1, 2, 3)
    await hall.streams.publisher.publish_ready()

    async def codes() -> list[str]:
        return [finding.code for finding in await doctor_streams.find_stream_problems(patient)]

    assert "stream_grows" not in await codes()
    await hall.streamed.put(**(await hall.on_the_stream())[0])
    assert "stream_grows" in await codes(), "one more than there are tasks"


async def test_early_offer_that_no_worker_claims_is_dispatched_and_published_again(
    hall: EarlyPublishing,
) -> None:
    ids = await hall.submit(1, 2)
    await hall.streams.publisher.publish_ready()
    first, second = await hall.on_the_stream()
    assert (await hall.claim(second)).refusal is None
    assert await hall.streams.publisher.republish_unclaimed() == 0, "there is time yet"
    hall.streams.publisher._again_seconds = 0.0
    assert await hall.streams.publisher.republish_unclaimed() == 1
    assert await hall.statuses(ids) == ["dispatched", "running"]
    task = await hall.world.store.task(hall.world.namespace, ids[0])
    assert task.dispatch_by is not None, "from now on a clock watches over it"
    *_, again = await hall.on_the_stream()
    assert again == first, "it is the same offer"
    assert (await hall.claim(first)).refusal is None
