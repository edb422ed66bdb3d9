"""Effects of attempts that are stale, dead or too slow to begin."""

from __future__ import annotations

from typing import Any

import pytest

from endwell import NOT_DONE, Context
from endwell.errors import StaleAttempt
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.store.effect_store import MemoryEffectStore
from endwell.turn.function_calls import inputs_hash
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually
from tests.turn.outside_calls import Counting, Pay, effect_events, effect_of, payer

PAY_FIVE = inputs_hash("pay", (5,), {})


class Holder:
    """A worker that does only what the test says: it intends an effect and then falls silent."""

    def __init__(self, world: World, session: Any, offer: Any) -> None:
        self.world = world
        self.session = session
        self.task = offer.task

    def command(self, kind: Any, **fields: Any) -> Any:
        return kind(
            command_id=self.world.app.runtime.ids.new(),
            namespace=self.world.namespace,
            actor="silent",
            task_id=self.task.id,
            attempt_id=self.task.attempt_id,
            **fields,
        )

    async def intend(self, key: str, args_hash: str = PAY_FIVE, timeout: float = 60.0) -> Any:
        intent = self.command(
            c.IntendEffect, step="1:()pay#1", key=key, args_hash=args_hash, timeout=int(timeout * SECOND)
        )
        return (await self.world.store.commit_one(intent)).ledger

    def finish(self, key: str) -> Any:
        return self.command(c.FinishEffect, step="1:()pay#1", key=key, content=b'"late"', content_hash="h")


async def holding(world: World, agent: str) -> Holder:
    session = await world.silent_session(agent)
    (offer,) = await world.claimed(session, agent)
    return Holder(world, session, offer)


@pytest.mark.covers("S3.13", "S3.14", "S3.15", "S3.16", "S3.43")
async def test_a_stale_attempt_cannot_commit_to_the_ledger(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    holder = await holding(clerk, "clerk")
    await holder.intend("order-1")
    before = await effect_of(clerk, "order-1")
    clerk.clock.advance(31)
    await (await clerk.supervisor()).reclaimer.run_once()
    assert (await handle.task()).attempt_id is None

    with pytest.raises(StaleAttempt):
        await clerk.store.commit_one(holder.finish("order-1"))

    assert await effect_of(clerk, "order-1") == before
    assert "effect.done" not in await clerk.history(handle)
    assert "step.recorded" not in await clerk.history(handle)
    (refused,) = await clerk.facts(handle, "write.refused")
    assert (refused.command, refused.attempt_id) == ("FinishEffect", holder.task.attempt_id)


@pytest.mark.covers("S3.21", "S3.23", "T15")
async def test_a_dead_workers_intent_is_waited_for_then_asked_about_and_never_run_blindly(
    world: World,
) -> None:
    pay = Pay(says=NOT_DONE, fails=0)
    payer(world, pay)
    await world.registered("payer")
    handle = await world.submitted("payer")
    holder = await holding(world, "payer")
    await holder.intend("order-1", timeout=60)
    intended_at = world.clock.now_us()
    world.clock.advance(31)
    pmo = await world.supervisor()
    await pmo.reclaimer.run_once()
    pay.clock = world.clock.now_us
    worker = await world.working()
    task = await world.in_status(handle, "running")
    assert task.attempt_id != holder.task.attempt_id

    async def is_blocked() -> bool:
        await world.let_pass(5, worker)
        return (await handle.task()).status == "blocked"

    await eventually(is_blocked, "that the old worker is gone is not known: a person is asked")
    assert (pay.calls, len(pay.asked)) == (0, 1)
    assert pay.asked_at >= intended_at + 65 * SECOND, "until then a call might have been in progress"


async def test_an_effect_not_done_by_a_cleanly_closed_session_is_executed(world: World) -> None:
    pay = Pay(says=NOT_DONE, fails=0)
    payer(world, pay)
    await world.registered("payer")
    handle = await world.submitted("payer")
    holder = await holding(world, "payer")
    await holder.intend("order-1", timeout=60)
    await world.store.commit_one(holder.command(c.HandBack))
    close = c.CloseSession(command_id="bye", namespace=world.namespace, session_id=holder.session.id)
    await world.store.commit_one(close)
    worker = await world.working()

    async def is_ended() -> bool:
        await world.let_pass(5, worker)
        return (await handle.task()).is_ended

    await eventually(is_ended)
    assert await handle.result(PATIENCE_SECONDS) == "paid 5"
    assert pay.calls == 1


class Slow(MemoryEffectStore):
    """A foreign store that takes its time the first time it is asked: between intent and call."""

    def __init__(self, world: World, seconds: float) -> None:
        super().__init__()
        self._world = world
        self._seconds = seconds

    async def get(self, key: str) -> bytes | None:
        seconds, self._seconds = self._seconds, 0.0
        self._world.clock.advance(seconds)
        return await super().get(key)


@pytest.mark.covers("S3.36")
@pytest.mark.parametrize(("seconds", "timeout"), [(20.0, 240), (3.0, 5)])
async def test_an_effect_begins_only_while_lease_and_intent_cover_it(
    world: World, seconds: float, timeout: float
) -> None:
    """The lease is 30 s and must cover 15; of its own time less than half may have passed."""
    pay = Counting()
    world.app.effects = Slow(world, seconds)

    @world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, 5, timeout=timeout)

    await world.working()
    handle = await world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == 5
    assert pay.calls == [5]
    assert await effect_events(world, handle) == [
        "effect.intended",
        "effect.settled",
        "effect.intended",
        "effect.done",
    ]
