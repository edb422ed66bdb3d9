"""Dead letters on the stream follow the store: replayed or abandoned they leave it, and replay makes one."""

from __future__ import annotations

import asyncio
from copy import copy

import pytest

from endwell import AsyncHandle, EndwellError, TaskFailed
from endwell.model import commands as c
from endwell.model.task import ErrorInfo
from endwell.operate.dead_letters import DeadLetters, Replacement
from endwell.operate.repair import edit_of
from endwell.store.reads.side_rows import DeadLetter
from endwell.streams.orchestrator.dead_letter_publisher import DeadLetterPublisher
from tests.patience import PATIENCE_SECONDS
from tests.streams.streamed import Streamed
from tests.support.world import eventually


async def dead(streamed: Streamed, *orders: dict[str, int]) -> list[AsyncHandle]:
    """Tasks that failed for good, each with a dead letter on the stream."""

    @streamed.world.app.agent("payer", retries=0)
    async def payer(order: dict[str, int]) -> int:
        return order["amount"]

    await streamed.world.working()
    await streamed.supervised()
    handles = [await failed(streamed, order) for order in orders]
    await told(streamed, len(handles))
    return handles


async def failed(streamed: Streamed, order: dict[str, int]) -> AsyncHandle:
    handle = await streamed.world.submitted("payer", order)
    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)
    return handle


async def told(streamed: Streamed, count: int) -> None:
    async def are_told() -> bool:
        return len(await streamed.letters()) == count

    await eventually(are_told, f"{count} dead letters are on the stream")


def letters_of(streamed: Streamed) -> DeadLetters:
    return DeadLetters(streamed.world.client.actions)


@pytest.mark.covers("S4.46")
async def test_replayed_dead_letter_leaves_the_stream_and_its_task_runs(streamed: Streamed) -> None:
    (handle,) = await dead(streamed, {"sum": 1})
    repair = Replacement(edits=(edit_of("amount=5"),))
    both = await asyncio.gather(
        letters_of(streamed).replay(handle.id, repair),
        letters_of(streamed).replay(handle.id, repair),
        return_exceptions=True,
    )
    (new,) = [each for each in both if not isinstance(each, BaseException)]
    (refused,) = [each for each in both if isinstance(each, EndwellError)]
    assert refused.code == "dead_letter_closed"
    replayed = await streamed.world.client.task(new.id)
    assert await replayed.result(PATIENCE_SECONDS) == 5
    assert new.replay_of == handle.id
    await told(streamed, 0)


@pytest.mark.covers("S4.47")
async def test_abandoned_dead_letter_leaves_the_stream_and_others_stay(streamed: Streamed) -> None:
    first, second = await dead(streamed, {"sum": 1}, {"sum": 2})
    await letters_of(streamed).abandon(first.id, "gone")
    await told(streamed, 1)
    (letter,) = await streamed.letters()
    assert letter["task_id"] == second.id
    assert letter["fingerprint"]


@pytest.mark.parametrize("left", [0, 1])
async def test_dead_letters_that_the_server_dropped_are_published_again(
    streamed: Streamed, left: int
) -> None:
    """As when a server short of memory evicts the stream, or a client trims it; the index stays."""
    handles = await dead(streamed, {"sum": 1}, {"sum": 2})
    await streamed.redis.ask("XTRIM", streamed.names.dlq, "MAXLEN", "=", left)
    await told(streamed, 2)
    assert {letter["task_id"] for letter in await streamed.letters()} == {handle.id for handle in handles}


async def test_dead_letters_are_not_published_twice_when_only_their_index_is_lost(streamed: Streamed) -> None:
    """As when a server short of memory evicts `dlq:index` alone: the stream shows what was published."""
    handles = await dead(streamed, {"sum": 1}, {"sum": 2})
    before = await streamed.letters()
    await streamed.redis.ask("DEL", streamed.names.dead_letters)
    third = await failed(streamed, {"sum": 3})
    await told(streamed, 3)
    assert (await streamed.letters())[:2] == before
    assert (await streamed.letters())[2]["task_id"] == third.id
    for handle in (*handles, third):
        await letters_of(streamed).abandon(handle.id, None)
    await told(streamed, 0)


@pytest.mark.parametrize("question", [1, 2], ids=["before its marks are read", "after that"])
async def test_dead_letters_are_not_published_twice_when_their_index_is_lost_during_a_look(
    streamed: Streamed, question: int
) -> None:
    await dead(streamed, {"sum": 1}, {"sum": 2})
    before = await streamed.letters()
    store = streamed.world.store
    looking = DeadLetterPublisher(
        store, (await streamed.orchestrator()).streams.dead_letters, namespace=streamed.world.namespace
    )
    usual, asked = store.letters_changed, 0

    async def evicting(namespace: str, since: int, after: str, limit: int) -> list[DeadLetter]:
        nonlocal asked
        asked += 1
        if asked == question:
            await streamed.redis.ask("DEL", streamed.names.dead_letters)
        return await usual(namespace, since, after, limit)

    looking._store = copy(store)
    looking._store.letters_changed = evicting  # type: ignore[method-assign]  # the test comes in between
    await looking.run_once()
    assert asked >= question
    await looking.run_once()
    assert await streamed.letters() == before


async def test_orchestrator_that_was_frozen_publishes_no_dead_letter_twice(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two orchestrators look at the same dead letters and find none on the stream."""
    streams = await streamed.orchestrator()
    world = streamed.world

    @world.app.agent("payer", retries=0)
    async def payer(order: int) -> None: ...

    await world.registered("payer")
    session = await world.silent_session("payer")
    for number in range(3):
        await world.submitted("payer", number)
    for offer in await world.claimed(session, "payer", 3):
        await world.store.commit_one(
            c.FailTurn(
                command_id=f"fail-{offer.task.id}",
                namespace=world.namespace,
                task_id=offer.task.id,
                attempt_id=offer.task.attempt_id or "",
                error=ErrorInfo(code="no_paper", message="no paper", retryable=False),
                fraction=0.0,
            )
        )
    frozen = DeadLetterPublisher(world.store, streams.streams.dead_letters, namespace=world.namespace)
    has_looked, may_publish, usual = asyncio.Event(), asyncio.Event(), frozen._publish

    async def freeze_then_publish(letter: DeadLetter) -> bool:
        has_looked.set()
        await may_publish.wait()
        return await usual(letter)

    monkeypatch.setattr(frozen, "_publish", freeze_then_publish)
    late = asyncio.create_task(frozen.run_once())
    await has_looked.wait()
    assert await streams.dead_letters.run_once() == 3
    may_publish.set()
    assert await late == 0
    assert len(await streamed.letters()) == 3
