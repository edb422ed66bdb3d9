"""An effect's call may outlive the coroutine that asked for it: it is never made again beside itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from endwell import NOT_DONE, Context, Done
from endwell.errors import WrongStatus
from endwell.model.moments import SECOND
from endwell.runtime import SystemClock
from tests.patience import PATIENCE_SECONDS
from tests.support.bank import Bank
from tests.support.world import World, eventually
from tests.turn.outside_calls import QUICK_EFFECTS, effect_of

MARGIN_SECONDS = 0.3


@pytest.fixture
async def effect_world(store_url: str) -> AsyncIterator[World]:
    """On each store, in real time."""
    settings = {**QUICK_EFFECTS, "worker.effect_margin_seconds": MARGIN_SECONDS}
    async with World(store_url, settings=settings, clock=SystemClock()) as world:
        yield world


@pytest.fixture
def bank() -> Any:
    one = Bank()
    yield one
    one.release.set()


def kinds_of(bank: Bank) -> dict[str, Callable[..., Any]]:
    return {
        "def": bank.charge,
        "to_thread": bank.in_default_executor,
        "own executor": bank.in_own_executor,
        "anyio": bank.in_a_thread_of_anyio,
    }


@pytest.mark.parametrize("kind", ["def", "to_thread", "own executor", "anyio"])
@pytest.mark.parametrize("key", ["order-1", None])
async def test_an_effect_abandoned_by_wait_for_is_joined_when_asked_for_again(
    effect_world: World, bank: Bank, kind: str, key: str | None
) -> None:
    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        for _ in range(3):
            try:
                return await asyncio.wait_for(ctx.effect("pay", kinds_of(bank)[kind], 5, key=key), 0.1)
            except TimeoutError:
                continue
        bank.release.set()
        return await ctx.effect("pay", kinds_of(bank)[kind], 5, key=key)

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "receipt 1"
    assert (bank.charges, bank.most_at_once, bank.begun) == ([5], 1, 1)


@pytest.mark.parametrize(
    "kind",
    [
        "charge",
        "in_default_executor",
        "in_own_executor",
        "in_an_executor_s_own_submit",
        "in_a_thread_of_anyio",
        "in_a_thread_of_its_own",
        "in_a_subprocess",
        "waits_too_briefly_for_an_executor",
        "gives_up_by_itself",
        "says_not_done_too_early",
        "raises_while_a_task_runs",
    ],
)
async def test_not_done_does_not_count_while_the_call_is_still_running(
    effect_world: World, bank: Bank, kind: str
) -> None:
    """The call outlives its coroutine for good: whether to repeat it is for a person to say."""

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        fn = getattr(bank, kind)
        return await ctx.effect("pay", fn, 5, key="order-1", reconcile=bank.find, timeout=0.3, retry=4)

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    await effect_world.in_status(handle, "blocked")
    assert bank.begun <= 1
    bank.release.set()
    await eventually(lambda: bank.charges == [5])
    await effect_world.client.settle_effect("order-1", "done", "receipt", by="ada")
    assert await handle.result(PATIENCE_SECONDS) == "receipt"
    assert bank.charges == [5]


@pytest.mark.parametrize("kind", ["charge", "in_default_executor", "gives_up_by_itself"])
async def test_a_call_that_ends_soon_after_its_time_is_found_by_reconcile(
    effect_world: World, bank: Bank, kind: str
) -> None:
    asked: list[int] = []

    def find(key: str, amount: int) -> Any:
        asked.append(len(bank.charges))
        bank.release.set()  # right after this honest "not there yet"
        return Done("found") if bank.charges else NOT_DONE

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect(
            "pay", getattr(bank, kind), 5, key="order-1", reconcile=find, timeout=0.3, retry=4
        )

    await effect_world.working()
    assert await (await effect_world.submitted("payer")).result(PATIENCE_SECONDS) == "found"
    assert (bank.charges, asked[0], asked[-1]) == ([5], 0, 1)


@pytest.mark.parametrize("kind", ["raises_while_a_task_runs", "waits_too_briefly_for_an_executor"])
async def test_not_done_that_was_asked_for_during_the_call_does_not_count_when_the_call_has_ended(
    effect_world: World, bank: Bank, kind: str
) -> None:
    """A reconcile that looks first and takes its time to answer: the charge comes in between."""

    async def find(key: str, amount: int) -> Any:
        found = Done("found") if bank.charges else NOT_DONE
        bank.release.set()
        await eventually(lambda: bool(bank.charges))
        return found

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect(
            "pay", getattr(bank, kind), 5, key="order-1", reconcile=find, timeout=5, retry=4
        )

    await effect_world.working()
    assert await (await effect_world.submitted("payer")).result(PATIENCE_SECONDS) == "found"
    assert bank.charges == [5]


async def test_a_timeout_of_the_function_s_own_counts_as_not_done_only_after_its_time(
    effect_world: World,
) -> None:
    calls: list[float] = []

    async def pay() -> str:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) == 1:
            raise OSError("no answer") from TimeoutError()
        return "paid"

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, key="order-1", reconcile=lambda _: NOT_DONE, timeout=0.5, retry=2)

    await effect_world.working()
    handle = await effect_world.submitted("payer")
    assert await handle.result(PATIENCE_SECONDS) == "paid"
    first, second = [e for e in await effect_world.events(handle) if e.type == "effect.intended"]
    fact = first.fact
    assert second.at >= fact.not_after + MARGIN_SECONDS * 1e6  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["in_default_executor", "in_a_thread_of_anyio", "in_a_subprocess"])
async def test_a_worker_with_a_call_in_progress_reports_no_clean_shutdown(
    effect_world: World, bank: Bank, kind: str
) -> None:
    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", getattr(bank, kind), 5, key="order-1", timeout=20)

    worker = await effect_world.started_worker()
    running = asyncio.ensure_future(worker.run())
    await effect_world.submitted("payer")
    await eventually(lambda: bank.begun == 1)
    session_id = worker.session_id
    worker.stop()
    await running
    await worker.close()
    session = await effect_world.store.session(effect_world.namespace, session_id)
    assert session is not None
    assert str(session.end_reason).startswith("left")


async def test_a_person_s_not_done_is_refused_while_the_call_runs_and_after_its_worker_has_left(
    effect_world: World, bank: Bank
) -> None:
    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", bank.charge, 5, key="order-1", timeout=0.3)

    async def settle(**options: bool) -> Any:
        return await effect_world.client.settle_effect("order-1", "not_done", by="ada", **options)

    worker = await effect_world.started_worker()
    running = asyncio.ensure_future(worker.run())
    handle = await effect_world.submitted("payer")
    await effect_world.in_status(handle, "blocked")

    async def is_named() -> bool:
        session = await effect_world.store.session(effect_world.namespace, worker.session_id)
        effect = await effect_of(effect_world, "order-1")
        over_at = (effect.not_after or 0) + MARGIN_SECONDS * SECOND
        return bool(session and session.doing) and await effect_world.store.now() > over_at

    await eventually(is_named)
    with pytest.raises(WrongStatus, match="still in progress"):
        await settle()
    worker._session.lose_lease(worker.session_id, "the test says so")  # the next session names the call too
    await eventually(is_named)
    with pytest.raises(WrongStatus, match="still in progress"):
        await settle()
    worker.stop()
    await running
    await worker.close()
    with pytest.raises(WrongStatus, match="still in progress"):
        await settle()
    bank.release.set()
    await settle(force=True)
    (settled,) = await effect_world.facts(handle, "effect.settled")
    assert (settled.by, settled.is_forced) == ("ada", True)


async def test_an_effect_that_is_done_is_returned_while_something_it_started_still_runs(
    effect_world: World,
) -> None:
    """As the task that reads a client's connection, which lives as long as the client."""
    started: list[asyncio.Task[Any]] = []

    async def pay() -> str:
        started.append(asyncio.create_task(asyncio.Event().wait()))
        return "paid"

    @effect_world.app.agent("payer", retries=0)
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, key="order-1", timeout=0.3)

    await effect_world.working()
    for _ in range(2):
        assert await (await effect_world.submitted("payer")).result(PATIENCE_SECONDS) == "paid"
    assert len(started) == 1
    started[0].cancel()


async def test_reconcile_that_fails_once_is_asked_again_before_a_person_is(effect_world: World) -> None:
    asked: list[str] = []

    def pay() -> str:
        raise ConnectionError("no answer")

    def find(key: str) -> Any:
        asked.append(key)
        if len(asked) == 1:
            raise OSError("503 Service Unavailable")
        return Done("found")

    @effect_world.app.agent("payer")
    async def run(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, key="order-1", reconcile=find)

    await effect_world.working()
    assert await (await effect_world.submitted("payer")).result(PATIENCE_SECONDS) == "found"
    assert asked == ["order-1", "order-1"]
    assert (await effect_of(effect_world, "order-1")).status == "done"
