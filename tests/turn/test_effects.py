"""Effects: at most once, and how they are settled when it is unknown whether they took place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import endwell
from endwell import CANNOT_TELL, NOT_DONE, AsyncHandle, Context, Done, NotDone, SyncContext, TaskFailed
from endwell.errors import StaleAttempt, StoreError, UsageError, WrongStatus
from endwell.model import commands as c
from endwell.model import content, moments
from endwell.model.effect import Effect
from endwell.policy.limits import SECOND
from endwell.policy.retry import RetryPolicy
from endwell.runtime import Runtime, SystemClock
from endwell.store.effect_store import EffectStore, MemoryEffectStore
from endwell.turn.function_calls import inputs_hash
from tests.patience import PATIENCE_SECONDS
from tests.support.world import QUICK, World, eventually
from tests.turn.test_steps import Counting

PAY_FIVE = inputs_hash("pay", (5,), {})
QUICK_EFFECTS = {**QUICK, "worker.effect_margin_seconds": 0.1, "worker.step_timeout_seconds": 5.0}


@pytest.fixture
async def quick(store_url: str) -> AsyncIterator[World]:
    """On each store, in real time."""
    async with World(store_url, settings=QUICK_EFFECTS, clock=SystemClock()) as world:
        yield world


async def effect_of(world: World, key: str) -> Effect:
    effect = await world.store.effect(world.namespace, key)
    assert effect is not None
    return effect


async def effect_events(world: World, handle: AsyncHandle) -> list[str]:
    return [kind for kind in await world.history(handle) if kind.startswith("effect.")]


@pytest.mark.covers("S3.36", "S4.33", "S4.34")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_effect_takes_place_once_however_the_turn_ends(quick: World, kind: str) -> None:
    pay = Counting()

    @quick.app.agent("async", delays=[0.01])
    async def run(ctx: Context) -> Any:
        paid = await ctx.effect("pay", pay, 5)
        if ctx.retry_count < 2:
            raise RuntimeError("after the effect")
        return paid

    @quick.app.agent("sync", delays=[0.01])
    def run_in_thread(ctx: SyncContext) -> Any:
        paid = ctx.effect("pay", pay, 5)
        if ctx.retry_count < 2:
            raise RuntimeError("after the effect")
        return paid

    await quick.working()
    handle = await quick.submitted(kind)
    assert await handle.result(PATIENCE_SECONDS) == 5
    assert pay.calls == [5]
    assert await effect_events(quick, handle) == ["effect.intended", "effect.done"]


@pytest.mark.covers("S3.14", "S3.39", "S3.40")
async def test_the_record_and_the_effect_are_one_commit_of_the_context_s_own_attempt(quick: World) -> None:
    @quick.app.agent("payer")
    async def run(ctx: Context) -> list[str]:
        await ctx.effect("pay", lambda: "paid", key="one-commit")
        return [ctx.task_id, ctx.attempt_id]

    await quick.working()
    handle = await quick.submitted("payer")
    whose = await handle.result(PATIENCE_SECONDS)
    events = {event.type: event for event in await quick.events(handle)}
    assert [events["effect.done"].task_id, events["effect.done"].attempt_id] == whose
    assert events["effect.done"].command_id == events["step.recorded"].command_id
    (recorded,) = await quick.facts(handle, "step.recorded")
    assert recorded.result_type == "side_effect_committed"
    assert events["effect.intended"].version < events["effect.done"].version


@pytest.mark.covers("S4.33", "S4.34")
async def test_the_key_holds_across_tasks_and_never_names_the_attempt(quick: World) -> None:
    pay = Counting()

    @quick.app.agent("payer")
    async def run(ctx: Context, key: str | None) -> Any:
        return await ctx.effect("pay", pay, 5, key=key)

    await quick.working()
    first, again = [await quick.submitted("payer", "order-1") for _ in range(2)]
    assert [await first.result(PATIENCE_SECONDS), await again.result(PATIENCE_SECONDS)] == [5, 5]
    assert pay.calls == [5]
    unnamed = await quick.submitted("payer", None)
    await unnamed.result(PATIENCE_SECONDS)
    (effect,) = await quick.store.effects_page(quick.namespace, task_id=unnamed.id)
    assert effect.key == f"{unnamed.id}:()pay#1"
    assert str(effect.attempt_id) not in effect.key


async def test_other_arguments_under_one_key_of_another_task_are_refused(quick: World) -> None:
    pay = Counting()

    @quick.app.agent("payer")
    async def run(ctx: Context, amount: int) -> Any:
        return await ctx.effect("pay", pay, amount, key="order-1")

    await quick.working()
    await (await quick.submitted("payer", 5)).result(PATIENCE_SECONDS)
    with pytest.raises(TaskFailed) as failed:
        await (await quick.submitted("payer", 6)).result(PATIENCE_SECONDS)
    error = failed.value.deliverable["error"]
    assert (error["code"], error["retryable"]) == ("effect_conflict", False)
    assert pay.calls == [5]


async def test_the_function_gets_the_key(quick: World) -> None:
    def named(idempotency_key: str) -> str:
        return idempotency_key

    def loose(**options: str) -> str:
        return options["idempotency_key"]

    async def asks() -> str:
        return endwell.effect_key()

    def asks_in_thread() -> str:
        return endwell.effect_key()

    @quick.app.agent("payer")
    async def run(ctx: Context) -> Any:
        functions: list[Callable[..., Any]] = [named, loose, asks, asks_in_thread]
        told = [await ctx.effect("pay", fn, key=f"key-{n}") for n, fn in enumerate(functions)]
        with pytest.raises(UsageError):
            endwell.effect_key()
        return told

    await quick.working()
    assert await (await quick.submitted("payer")).result(PATIENCE_SECONDS) == [
        "key-0",
        "key-1",
        "key-2",
        "key-3",
    ]


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 501, 7])
async def test_an_invalid_key_is_refused(sqlite_world: World, key: Any) -> None:
    pay = Counting()

    @sqlite_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, key=key)

    await sqlite_world.working()
    handle = await sqlite_world.submitted("payer")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "bad_effect_key"
    assert pay.calls == []


class Pay:
    """A payment whose call fails after the money has gone, or before; and a `reconcile` that can look."""

    def __init__(self, *, pays: bool = True, says: Any = None, fails: int = 1) -> None:
        self.pays = pays
        self.says = says
        self.fails = fails
        self.calls = 0
        self.asked: list[tuple[Any, ...]] = []
        self.asked_at = 0
        self.clock: Callable[[], int] = lambda: 0

    def __call__(self, amount: int) -> str:
        self.calls += 1
        if self.calls <= self.fails:
            raise ConnectionError("the line is dead")
        return f"paid {amount}"

    def find(self, key: str, amount: int) -> Any:
        self.asked.append((key, amount))
        self.asked_at = self.clock()
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def payer(world: World, pay: Pay, *, can_look: bool = True, retries: int = 0, **options: Any) -> None:
    @world.app.agent("payer", retries=retries, delays=[0.01])
    async def run(ctx: Context) -> Any:
        reconcile = pay.find if can_look else None
        return await ctx.effect("pay", pay, 5, key="order-1", reconcile=reconcile, **options)


@pytest.mark.parametrize("says", [Done("found"), "found"])
async def test_a_failed_call_that_was_done_is_done(quick: World, says: Any) -> None:
    pay = Pay(says=says)
    payer(quick, pay)
    await quick.working()
    handle = await quick.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "found"
    assert (pay.calls, pay.asked) == (1, [("order-1", 5)])
    assert await effect_events(quick, handle) == ["effect.intended", "effect.unknown", "effect.settled"]


@pytest.mark.parametrize("says", [NOT_DONE, None])
async def test_a_failed_call_that_was_not_done_fails_the_turn_and_may_be_tried_again(
    quick: World, says: Any
) -> None:
    pay = Pay(says=says)
    payer(quick, pay, retries=1)
    await quick.working()
    handle = await quick.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid 5"
    assert pay.calls == 2
    assert (await handle.task()).retry_count == 1


async def test_a_call_that_was_not_done_is_tried_again_in_the_same_turn_where_asked_for(quick: World) -> None:
    pay = Pay(says=NOT_DONE, fails=2)
    payer(quick, pay, retry=RetryPolicy(max_retries=2, base_seconds=0.01))
    await quick.working()
    handle = await quick.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid 5"
    assert (pay.calls, (await handle.task()).retry_count) == (3, 0)


@pytest.mark.covers("T15")
@pytest.mark.parametrize("says", [CANNOT_TELL, ValueError("no answer"), Done(object()), "no reconcile"])
async def test_an_effect_without_a_verdict_is_handed_to_a_person(quick: World, says: Any) -> None:
    pay = Pay(says=says)
    payer(quick, pay, can_look=says != "no reconcile", retries=3)
    worker = await quick.working()
    handle = await quick.submitted("payer")
    task = await quick.in_status(handle, "blocked")

    assert (task.reason, task.owner) == ("effect_unknown", quick.app.owner)
    assert (await effect_of(quick, "order-1")).status == "unknown"
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert pay.calls == 1
    await quick.client.settle_effect("order-1", "done", by="ada", result="by hand")
    assert await handle.result(PATIENCE_SECONDS) == "by hand"
    assert pay.calls == 1


async def test_a_person_may_say_that_it_was_not_done(quick: World) -> None:
    pay = Pay()
    payer(quick, pay, can_look=False)
    await quick.working()
    handle = await quick.submitted("payer")
    await quick.in_status(handle, "blocked")
    with pytest.raises(WrongStatus) as refused:
        await quick.client.settle_effect("order-1", "not_done", by="ada")
    effect = await effect_of(quick, "order-1")
    moment = moments.moment((effect.not_after or 0) + int(0.1 * SECOND))
    assert (refused.value.code, str(moment) in refused.value.message) == ("effect_in_flight", True)
    await quick.client.settle_effect("order-1", "not_done", by="ada", force=True)
    assert await handle.result(PATIENCE_SECONDS) == "paid 5"
    assert pay.calls == 2
    (settled,) = await quick.facts(handle, "effect.settled")
    assert (settled.by, settled.is_forced) == ("ada", True)


async def test_an_abandoned_effect_is_never_executed(quick: World) -> None:
    pay = Pay()
    payer(quick, pay, can_look=False)
    await quick.working()
    handle = await quick.submitted("payer")
    await quick.in_status(handle, "blocked")
    await quick.client.settle_effect("order-1", "abandon", by="ada")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "effect_abandoned"
    assert pay.calls == 1


async def test_where_the_outside_deduplicates_a_failed_call_may_be_repeated(quick: World) -> None:
    pay = Pay()
    payer(quick, pay, can_look=False, retries=1, deduplicates=True)
    await quick.working()
    handle = await quick.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid 5"
    assert pay.calls == 2


async def test_where_the_outside_deduplicates_a_call_that_is_given_up_stays_unknown(quick: World) -> None:
    """It may have taken place: only a call that follows at once may say that it does not matter."""
    pay = Pay()
    payer(quick, pay, can_look=False, retries=0, deduplicates=True)
    await quick.working()
    handle = await quick.submitted("payer")
    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)
    assert (pay.calls, (await effect_of(quick, "order-1")).status) == (1, "unknown")
    again = await quick.client.actions.retry(handle.id)
    assert await (await quick.client.task(again.id)).result(PATIENCE_SECONDS) == "paid 5"
    assert (await effect_of(quick, "order-1")).status == "done"


async def test_settling_an_effect_frees_every_task_that_is_held_for_it(quick: World) -> None:
    pay = Pay()
    payer(quick, pay, can_look=False)
    await quick.working()
    first, second = await quick.submitted("payer"), await quick.submitted("payer")
    for handle in (first, second):
        await quick.in_status(handle, "blocked")
    asked = [await handle.why() for handle in (first, second)]
    for why in asked:
        assert why["waiting_for"][0] == {"kind": "effect", "id": "order-1", "deadline": None}
        assert "effect settle" in why["actions"]

    await quick.client.settle_effect("order-1", "done", by="ada", result="by hand")
    assert [await handle.result(PATIENCE_SECONDS) for handle in (first, second)] == ["by hand", "by hand"]
    assert pay.calls == 1


async def test_a_supervisor_frees_tasks_that_are_held_for_an_effect_that_is_settled(quick: World) -> None:
    """The process that settled it died before it could free the other tasks that are held for it."""
    pay = Pay()
    payer(quick, pay, can_look=False)
    await quick.working()
    first, second = await quick.submitted("payer"), await quick.submitted("payer")
    for handle in (first, second):
        await quick.in_status(handle, "blocked")
    effect = await effect_of(quick, "order-1")
    await quick.store.commit_one(
        c.SettleEffect(
            command_id=quick.app.runtime.ids.new(),
            namespace=quick.namespace,
            actor="ada",
            task_id=effect.task_id,
            key="order-1",
            verdict="done",
            content=b'"by hand"',
            content_hash=content.fingerprint(b'"by hand"'),
        )
    )
    await (await quick.supervisor()).run_once()
    assert [await handle.result(PATIENCE_SECONDS) for handle in (first, second)] == ["by hand", "by hand"]
    assert pay.calls == 1


async def test_a_task_that_an_earlier_version_blocked_names_its_unknown_effect_too(quick: World) -> None:
    """Its row does not say for which effect it is held."""
    payer(quick, Pay(), can_look=False)
    await quick.working()
    handle = await quick.submitted("payer")
    await quick.in_status(handle, "blocked")
    await quick.sql(
        "UPDATE tasks SET inside = NULL WHERE namespace = ? AND id = ?", quick.namespace, handle.id
    )
    assert await is_held_for(handle, "order-1")
    assert "effect settle" in (await handle.why())["actions"]

    await quick.client.settle_effect("order-1", "done", by="ada", result="by hand")
    assert await handle.result(PATIENCE_SECONDS) == "by hand"


async def test_settling_an_effect_does_not_free_tasks_held_for_another(quick: World) -> None:
    """Although it has asked for the settled one, too, before a person sent it on."""
    wanted = ["first"]

    def lost(key: str) -> str:
        raise ConnectionError(f"the outcome of {key} is unknown")

    @quick.app.agent("payer")
    async def payer(ctx: Context) -> Any:
        return await ctx.effect(f"pay {wanted[0]}", lost, wanted[0], key=wanted[0])

    await quick.working()
    moved, kept = await quick.submitted("payer"), await quick.submitted("payer")
    for handle in (moved, kept):
        await quick.in_status(handle, "blocked")
    wanted[0] = "second"
    await kept.unblock()
    await eventually(lambda: is_held_for(kept, "second"), "it continues, and is held for another effect")

    await quick.client.settle_effect("first", "done", by="ada", result="by hand")
    freed = [(await quick.history(handle)).count("task.unblocked") for handle in (moved, kept)]
    assert freed == [1, 1], "the other one only by the person who sent it on"
    assert await is_held_for(kept, "second")

    await quick.client.settle_effect("second", "done", by="ada", result="by hand, too")
    assert await kept.result(PATIENCE_SECONDS) == "by hand, too"


async def is_held_for(handle: AsyncHandle, key: str) -> bool:
    return {"kind": "effect", "id": key, "deadline": None} in (await handle.why())["waiting_for"]


async def test_a_function_may_raise_not_done(quick: World) -> None:
    calls = Counting()

    def pay() -> str:
        calls("call")
        if len(calls.calls) == 1:
            raise NotDone("refused at the door")
        return "paid"

    @quick.app.agent("payer", retries=1, delays=[0.01])
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay)

    await quick.working()
    handle = await quick.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid"
    assert len(calls.calls) == 2
    assert "effect.unknown" not in await effect_events(quick, handle)


@pytest.mark.covers("S3.30", "S3.36")
async def test_a_timed_out_effect_is_unknown_and_never_a_retryable_failure(quick: World) -> None:
    calls = Counting()

    async def pay() -> None:
        calls("call")
        await asyncio.sleep(30)

    @quick.app.agent("payer", retries=3)
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, timeout=0.5, key="slow")

    await quick.working()
    handle = await quick.submitted("payer")
    await quick.in_status(handle, "blocked")
    (doubt,) = await quick.facts(handle, "effect.unknown")
    assert (doubt.key, doubt.reason) == ("slow", "timeout")
    assert calls.calls == ["call"]


async def test_a_function_that_is_still_running_may_yet_do_it(quick: World) -> None:
    """That it is not done now says nothing: a person is asked, and the thread's late return is discarded."""
    let_go = threading.Event()
    calls = Counting()

    def pay() -> str:
        calls("call")
        let_go.wait(PATIENCE_SECONDS)
        return "paid at last"

    @quick.app.agent("payer", retries=3)
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, timeout=0.5, key="slow", reconcile=lambda key: NOT_DONE, retry=3)

    worker = await quick.working()
    handle = await quick.submitted("payer")
    await quick.in_status(handle, "blocked")
    assert worker._turns.slots_taken == 1, "its thread keeps the slot"
    let_go.set()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert calls.calls == ["call"]
    assert (await effect_of(quick, "slow")).status == "unknown"


async def test_a_result_that_cannot_be_kept_leaves_the_effect_unknown(quick: World) -> None:
    calls = Counting()

    def pay() -> Any:
        calls("call")
        return object()

    @quick.app.agent("payer", retries=3)
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay)

    await quick.working()
    handle = await quick.submitted("payer")
    await quick.in_status(handle, "blocked")
    assert calls.calls == ["call"]


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


class Noting(MemoryEffectStore):
    """Notes what the log said when a result was put away, and may be out of order at first."""

    def __init__(self, world: World, failures: int = 0) -> None:
        super().__init__()
        self._world = world
        self._failures = failures
        self.log: list[str] = []

    async def put(self, key: str, content: bytes, attempt_id: str) -> None:
        if self._failures:
            self._failures -= 1
            raise StoreError("the effect store is away")
        events = await self._world.store.events_after(self._world.namespace, "", 100)
        self.log = [logged.event.type for logged in events]
        await super().put(key, content, attempt_id)


@pytest.mark.covers("S3.42")
async def test_a_turn_that_is_run_again_executes_what_is_neither_recorded_nor_kept(quick: World) -> None:
    """Its first run died before the effect: then it is executed, kept first, and logged after that."""
    pay = Counting()
    effects = quick.app.effects = Noting(quick)
    runs: list[int] = []

    @quick.app.agent("payer", retries=1, delays=[0.01])
    async def run(ctx: Context) -> Any:
        await ctx.step("look", lambda: runs.append(0))
        runs.append(1)
        if runs.count(1) == 1:
            raise ConnectionError("before anything was changed outside")
        return await ctx.effect("pay", pay, 5, key="order-1")

    await quick.working()
    handle = await quick.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == 5
    assert (runs, pay.calls) == ([0, 1, 1], [5]), "the recorded step is not run again"
    assert effects.log[-1] == "effect.intended", "it was kept before the log said that it is done"
    history = await quick.history(handle)
    assert (
        history.index("task.retry_scheduled")
        < history.index("effect.intended")
        < history.index("effect.done")
    )


@pytest.mark.covers("S3.37", "S3.38", "S3.39", "S3.40", "S3.46", "S3.47")
async def test_with_an_effect_store_the_result_is_there_before_the_log_says_so(quick: World) -> None:
    pay = Counting()
    effects = quick.app.effects = Noting(quick, failures=2)

    @quick.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, 5, key="order-1")

    await quick.working()
    handle = await quick.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == 5
    assert pay.calls == [5]
    assert effects.log[-1] == "effect.intended"
    assert list(effects.results) == [f"{quick.namespace}/order-1"]
    (kept, attempt) = effects.results[f"{quick.namespace}/order-1"]
    assert kept == b"5"
    assert attempt in {event.attempt_id for event in await quick.events(handle)}


@pytest.mark.covers("S3.41", "S3.48")
async def test_a_result_in_the_effect_store_is_recorded_by_the_next_attempt(quick: World) -> None:
    """As after a restore of the database from an old backup: the log has never heard of the effect."""
    pay = Counting()
    effects = quick.app.effects = MemoryEffectStore()
    await effects.put(f"{quick.namespace}/order-1", b'"paid before"', "an attempt long gone")

    @quick.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, 5, key="order-1")

    await quick.working()
    handle = await quick.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid before"
    assert pay.calls == []
    assert await effect_events(quick, handle) == ["effect.intended", "effect.done"]
    (record,) = await quick.facts(handle, "step.recorded")
    assert record.result_type == "side_effect_committed"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def effect_store(request: pytest.FixtureRequest, tmp_path: Path) -> EffectStore:
    if request.param == "memory":
        return endwell.MemoryEffectStore()
    if request.param == "sqlite":
        return endwell.SqliteEffectStore(tmp_path / "effects.db")
    return endwell.PostgresEffectStore(str(request.getfixturevalue("shared_postgres_url")))


@pytest.mark.covers("S3.46")
async def test_every_effect_store_keeps_the_first_result(effect_store: EffectStore, tmp_path: Path) -> None:
    key = f"{tmp_path}/order"
    assert await effect_store.get(key) is None
    await asyncio.gather(*(effect_store.put(key, b"1", "a") for _ in range(3)))
    await effect_store.put(key, b"2", "b")
    assert await effect_store.get(key) == b"1"
    await effect_store.close()
    assert await effect_store.get(key) == b"1"
    await effect_store.close()


async def test_threads_that_share_an_effect_store_on_sqlite_ask_it_one_after_another(tmp_path: Path) -> None:
    shared = endwell.SqliteEffectStore(tmp_path / "effects.db", runtime=Runtime.system(threads=8))
    keys = [f"order-{n % 40}" for n in range(400)]
    await asyncio.gather(*(shared.put(key, key.encode(), "a") for key in keys))
    found = await asyncio.gather(*(shared.get(key) for key in keys))
    await shared.close()

    assert found == [key.encode() for key in keys]


@pytest.mark.parametrize(
    "effect_store",
    [
        endwell.SqliteEffectStore("/nowhere/at/all/effects.db"),
        endwell.PostgresEffectStore("postgresql://localhost:1/none"),
    ],
)
async def test_an_unusable_effect_store_is_refused(effect_store: EffectStore) -> None:
    with pytest.raises(StoreError):
        await effect_store.get("order")
