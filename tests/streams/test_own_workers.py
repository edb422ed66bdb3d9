"""Our own workers on the streams: they start what the store grants, and acknowledge what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from endwell import TaskFailed
from endwell.client import AsyncHandle
from endwell.model.commands import Claim, Command, Dispatch
from endwell.model.moments import moment
from endwell.store.rows import Reply
from endwell.streams import intake
from endwell.streams.orchestrator import publisher
from endwell.turn.endings import EndedTurn
from endwell.worker.store_source import Capacity
from endwell.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.streams.streamed import Streamed, intake_of
from tests.support.world import eventually, terminal


@pytest.mark.covers("S4.1", "S4.3", "S4.6", "S4.14", "S4.57")
async def test_task_succeeds_and_no_entry_stays_pending(
    on_each_store: Streamed,
) -> None:
    world = on_each_store.world

    @world.app.agent("clerk")
    async def clerk(number: int) -> int:
        return 2 * number

    await world.working()
    await on_each_store.supervised()
    handles = await world.client.submit_many("clerk", range(20))
    assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [2 * n for n in range(20)]
    await on_each_store.nothing_pending()
    assert await world.history(handles[0]) == [
        "task.created",
        "task.dispatched",
        "task.claimed",
        "turn.ended",
        "task.succeeded",
    ]
    page = await world.store.inbox_page(world.namespace, limit=1)
    assert page == [], "what a stream carries costs no row of the inbox"


@pytest.mark.covers("S4.15", "S4.32")
async def test_entry_is_pending_while_its_turn_runs(on_each_store: Streamed) -> None:
    streamed, gate = on_each_store, asyncio.Event()
    world = streamed.world

    @world.app.agent("clerk")
    async def clerk(number: int) -> None:
        await gate.wait()

    worker = await world.working()
    await streamed.supervised()
    handle = await world.submitted("clerk", 7, key="order-7")
    await world.in_status(handle, "running")
    ((message_id, consumer, _),) = await streamed.pending()
    assert consumer == worker.name
    ((entry_id, fields),) = await streamed.entries(streamed.names.task)
    assert (entry_id, fields["task_id"], fields["tool_name"]) == (message_id, handle.id, "clerk")
    assert (fields["idempotency_key"], fields["payload"]) == ("order-7", "7")
    gate.set()
    await handle.result(PATIENCE_SECONDS)
    await streamed.nothing_pending()


async def backlogged(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch, *, tasks: int, concurrency: int
) -> tuple[list[AsyncHandle], Worker]:
    """Tasks that end at once, and a worker; as if there were always enough on the stream to take."""
    for module in (publisher, intake):
        monkeypatch.setattr(module, "AHEAD_SECONDS", 100.0)

    @streamed.app.agent("clerk")
    async def clerk() -> None: ...

    await streamed.world.registered("clerk")
    handles = await streamed.world.client.submit_many("clerk", [None] * tasks)
    return handles, await streamed.world.working(concurrency=concurrency)


async def test_endings_are_handed_in_before_more_turns_are_claimed(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise results would wait the longer, the longer a backlog lasts."""
    handles, worker = await backlogged(streamed, monkeypatch, tasks=1500, concurrency=128)
    ended_late, left_behind = 0, list[int]()
    commit, add, next_capacity = worker._actor.store.commit, worker._outbox.add, worker._next_capacity

    def begin_round() -> Capacity:
        nonlocal ended_late
        ended_late = 0
        return next_capacity()

    def add_ending(ending: EndedTurn) -> None:
        nonlocal ended_late
        ended_late += 1  # after the round's claims were chosen: it is for the next round
        add(ending)

    async def noted(commands: Sequence[Command]) -> list[Reply]:
        left_behind.append(len(worker._outbox) - ended_late)
        return await commit(commands)

    monkeypatch.setattr(worker, "_next_capacity", begin_round)
    monkeypatch.setattr(worker._outbox, "add", add_ending)
    monkeypatch.setattr(worker._actor.store, "commit", noted)
    await streamed.supervised()
    await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
    assert max(left_behind) <= 0


async def test_ring_wakes_a_worker_only_while_its_stream_is_away(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    @streamed.app.agent("clerk")
    async def clerk() -> None: ...

    worker = await streamed.world.started_worker()
    read = intake_of(worker)
    assert read.is_up
    work = frozenset({f"work:{streamed.world.namespace}:clerk"})
    worker._wake.clear()
    worker.on_doorbell(work)
    assert not worker._wake.is_set()
    monkeypatch.setattr(read._loops, "is_up", False)
    worker.on_doorbell(work)
    assert worker._wake.is_set()


async def test_backlog_on_the_stream_is_claimed_in_concurrent_commits(
    on_each_store: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turns of one run while the other is written."""
    handles, worker = await backlogged(on_each_store, monkeypatch, tasks=400, concurrency=32)
    at_once, commit = [0, 0], worker._actor.store.commit

    async def counted(commands: Sequence[Command]) -> list[Reply]:
        takes = any(isinstance(command, Claim) for command in commands)
        at_once[0] += takes
        at_once[1] = max(at_once)
        try:
            return await commit(commands)
        finally:
            at_once[0] -= takes

    monkeypatch.setattr(worker._actor.store, "commit", counted)
    await on_each_store.supervised()
    await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
    assert at_once[1] == on_each_store.world.store.parallel_commits


@pytest.mark.covers("S4.14", "S4.29", "S4.30", "S4.36", "S4.58")
@pytest.mark.covers("S4.39", "S4.40", "S4.41", "S4.42", "S4.43", "S4.44")
async def test_three_retries_are_four_executions_then_a_dead_letter(streamed: Streamed) -> None:
    world, runs = streamed.world, []

    @world.app.agent("clerk")
    async def clerk(order: dict[str, int]) -> None:
        runs.append(order)
        raise RuntimeError("no ink")

    await world.working()
    await streamed.supervised()
    handle = await world.submitted("clerk", {"n": 1})
    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)
    assert len(runs) == 4
    history = await world.history(handle)
    assert history.count("task.claimed") == 4
    assert history.count("task.retry_scheduled") == 3
    assert terminal(history) == ["task.failed"]
    assert history[-1] == "task.dlq"

    async def is_told() -> bool:
        return len(await streamed.letters()) == 1

    await eventually(is_told, "the dead letter is on its stream")
    (letter,) = await streamed.letters()
    assert letter["task_id"] == handle.id
    assert (letter["tool_name"], letter["payload"], letter["retry_count"]) == ("clerk", '{"n":1}', "4")
    assert "no ink" in letter["error"]
    assert letter["failed_at"] == moment((await handle.task()).ended_at)
    await streamed.nothing_pending()


async def test_delayed_task_is_published_when_it_starts_without_a_ring(
    on_each_store: Streamed,
) -> None:
    """Its agent may have come after the orchestrator, and nothing need be committed at that moment."""
    world = on_each_store.world
    streams = await on_each_store.orchestrator()
    seen = await streams.publisher._probe.ask()
    assert (seen["long_ready"], seen["next_start"]) == (False, None)

    @world.app.agent("clerk")
    async def clerk() -> None: ...

    await world.registered("clerk")
    handle = await world.submitted("clerk", delay=0.3)
    start = (await handle.task()).run_at
    assert (await streams.publisher._probe.ask())["next_start"] == start

    async def is_ready() -> bool:
        return bool((await streams.publisher._probe.ask())["long_ready"])

    await eventually(is_ready, "its time has come")
    assert await world.store.now() >= start


class Suspects:
    """Two tasks that one more crash would end, and a third; a worker runs what it may until `gate` is set."""

    def __init__(self, streamed: Streamed) -> None:
        self.streamed = streamed
        self.gate = asyncio.Event()

        @streamed.app.agent("clerk")
        async def clerk(number: int) -> int:
            await self.gate.wait()
            return number

    async def begin(self) -> None:
        world = self.streamed.world
        await world.registered("clerk")
        self.handles = await world.client.submit_many("clerk", range(2))
        session = await world.silent_session("clerk", lease_seconds=3600)
        for _ in range(world.app.settings.pmo.crash_limit - 1):
            for offer in await world.claimed(session, "clerk", 2):
                await session.crash(offer)
        self.worker = await world.working()
        self.pmo = await self.streamed.supervised()
        plain = await world.submitted("clerk", 2)
        self.handles.append(plain)
        await world.in_status(plain, "running")

    @property
    def publisher(self) -> publisher.OfferPublisher:
        assert self.pmo.streams is not None
        return self.pmo.streams.publisher


@pytest.fixture
async def suspects(on_each_store: Streamed) -> Suspects:
    suspects = Suspects(on_each_store)
    await suspects.begin()
    return suspects


async def test_tasks_close_to_their_crash_limit_are_offered_one_at_a_time(suspects: Suspects) -> None:
    """Otherwise one crash would count against two of them."""
    for _ in range(3):
        await suspects.publisher.publish_ready()
    assert await suspects.streamed.world.counts() == {"running": 2, "queued": 1}
    suspects.gate.set()
    assert [await handle.result(PATIENCE_SECONDS) for handle in suspects.handles] == [0, 1, 2]


async def test_worker_leaves_a_second_task_close_to_its_crash_limit_to_others(suspects: Suspects) -> None:
    """The store may have given it the first while the stream was away."""
    streamed, world = suspects.streamed, suspects.streamed.world
    status = {await handle.status(): handle for handle in suspects.handles[:2]}
    dispatch = Dispatch(
        command_id=world.app.runtime.ids.new(),
        namespace=world.namespace,
        task_id=status["queued"].id,
        is_streamed=True,
    )
    dispatched = (await world.store.commit_one(dispatch)).unwrap()
    await suspects.publisher.republish_passed(dispatched.id, (dispatched.turn_id or "", dispatched.epoch))

    async def was_decided() -> bool:
        worker = suspects.worker
        has_come = len(await streamed.pending()) == 3
        return has_come and not worker._claims and not intake_of(worker).arrived_count

    await eventually(was_decided, "the worker has tried to claim the offer")
    assert await world.counts() == {"running": 2, "dispatched": 1}
