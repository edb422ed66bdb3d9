"""PMOs that freeze in the middle of a tick and wake up later: the door decides their commands again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from endwell.model.commands import CloseSession, Command
from endwell.pmo.service import Pmo
from endwell.store.actor import Actor
from endwell.store.rows import Reply
from tests.support.world import Session, World, eventually, terminal

TASKS = 12
ROUNDS = 60
Outcome = tuple[Any, ...]


class FrozenStore:
    """A store whose user may freeze after each answer, before it acts."""

    def __init__(self, store: Any, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        self.gate = asyncio.Event()
        self.gate.set()
        self.frozen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commands: Sequence[Command]) -> list[Reply]:
        """Commit what was decided before the freeze."""
        if self._chance.random() < 0.5:
            self.frozen += 1
            self.gate.clear()
        await self.gate.wait()
        replies: list[Reply] = await self._store.commit(commands)
        return replies


async def played(url: str, seed: int, *, with_second: bool) -> tuple[list[Outcome], int]:
    """Play one story, with or without a second PMO that freezes and wakes at random."""
    # nothing is ever offered: who is offered what would depend on who asks first
    async with World(url, settings={"worker.heartbeat_seconds": 10, "worker.poll_seconds": 3600}) as world:

        @world.app.agent("clerk")
        async def clerk(number: int) -> None: ...

        await world.registered("clerk")
        chance = random.Random(seed)
        first = await world.supervisor()
        second, frozen = await second_supervisor(world, chance) if with_second else (None, None)
        story = random.Random(seed)
        sleeper: asyncio.Task[None] | None = None
        handles = await world.client.submit_many("clerk", range(TASKS), deadline=240)
        for _ in range(ROUNDS):
            await worker_moves(world, story)
            if second is not None and frozen is not None:
                if sleeper is None or sleeper.done():
                    sleeper = asyncio.ensure_future(second.run_once())
                if chance.random() < 0.3:
                    frozen.gate.set()
                await frozen_or_done(frozen, sleeper)
            world.clock.advance(5)
            await first.run_once()
        if frozen is not None and sleeper is not None:
            frozen.gate.set()
            frozen._chance = random.Random(0)
            while not sleeper.done():
                frozen.gate.set()
                await asyncio.sleep(0.001)
        outcomes = [await outcome(world, handle) for handle in handles]
        return outcomes, 0 if frozen is None else frozen.frozen


async def frozen_or_done(frozen: FrozenStore, sleeper: asyncio.Task[None]) -> None:
    """Wait on the condition and not on time, so that the story is the same on a busy machine."""
    await eventually(lambda: sleeper.done() or not frozen.gate.is_set(), "it goes no further")


async def second_supervisor(world: World, chance: random.Random) -> tuple[Pmo, FrozenStore]:
    node = await world.another_node()
    frozen = FrozenStore(node.store, chance)
    actor = Actor(
        frozen,  # type: ignore[arg-type]  # a store that hesitates
        world.app.runtime.ids,
        namespace=world.namespace,
        name="sleepy",
    )
    return Pmo(actor, world.app.runtime, world.app.settings), frozen


async def worker_moves(world: World, story: random.Random) -> None:
    """Now and then a worker claims a task and finishes it, or falls silent."""
    if story.random() < 0.25:
        session = await world.silent_session("clerk", concurrency=1, lease_seconds=30)
        held = await world.claimed(session, "clerk")
        if held and story.random() < 0.3:
            await session.finish(held[0])
            await leave(world, session)


async def leave(world: World, session: Session) -> None:
    """Close the session as a worker does that stops."""
    command_id = world.app.runtime.ids.new()
    closing = CloseSession(command_id=command_id, namespace=world.namespace, session_id=session.id)
    await world.store.commit_one(closing)


async def outcome(world: World, handle: Any) -> Outcome:
    task = await handle.task()
    assert len(terminal(await world.history(handle))) == 1
    return task.status, task.reason, task.dispatch_count, task.crash_count, task.retry_count


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_pmo_frozen_and_woken_at_random_changes_nothing(sqlite_url: str, seed: int) -> None:
    alone, _ = await played(sqlite_url, seed, with_second=False)
    together, frozen = await played(sqlite_url, seed, with_second=True)
    assert frozen > 3, "it was frozen while it had something to say"
    assert together == alone
    assert len({status for status, *_ in alone}) > 1, "and tasks ended in more than one way"


async def test_with_a_frozen_pmo_nothing_is_lost_or_ended_twice_on_postgresql(
    shared_postgres_url: str,
) -> None:
    """Real time passes there, so two stories never match exactly."""
    together, frozen = await played(shared_postgres_url, 4, with_second=True)
    assert frozen > 3
    assert len(together) == TASKS, "each of them ended, exactly once"
