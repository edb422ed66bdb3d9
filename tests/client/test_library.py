"""The library as scripts, notebooks and async programs use it."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

import endwell
from endwell import (
    BadSetting,
    Context,
    Endwell,
    EndwellError,
    Fail,
    NotFound,
    Retry,
    TaskCancelled,
    TaskEnded,
    TaskFailed,
    TaskNotSucceeded,
    TaskTimedOut,
    UsageError,
    WaitTimedOut,
)
from endwell.model.task import Task
from tests.patience import PATIENCE_SECONDS
from tests.support.world import QUICK, World, eventually, terminal

PUBLIC = [
    "CANNOT_TELL",
    "NOT_DONE",
    "AmbiguousStep",
    "Approval",
    "ApprovalExpired",
    "ApprovalRejected",
    "Approved",
    "AsyncHandle",
    "BadInput",
    "BadSetting",
    "CallFailed",
    "Client",
    "Context",
    "Done",
    "EffectRejected",
    "EffectStore",
    "Endwell",
    "EndwellError",
    "Fail",
    "Handle",
    "IdempotencyConflict",
    "MemoryEffectStore",
    "NotDone",
    "NotFound",
    "PostgresEffectStore",
    "Refused",
    "ReplayMismatch",
    "Retry",
    "SignalTimeout",
    "SqliteEffectStore",
    "StaleAttempt",
    "StepFailed",
    "StepTimeout",
    "StoreError",
    "SyncContext",
    "TaskCancelled",
    "TaskEnded",
    "TaskFailed",
    "TaskNotSucceeded",
    "TaskTimedOut",
    "ToolFailed",
    "ToolTimeout",
    "TurnError",
    "UnknownAgent",
    "UsageError",
    "VersionMismatch",
    "WaitTimedOut",
    "WrongStatus",
    "effect_key",
]


def test_the_public_names_are_these() -> None:
    assert endwell.__all__ == PUBLIC
    assert all(hasattr(endwell, name) for name in PUBLIC)


def small_app(url: str) -> Endwell:
    app = Endwell(url, namespace=f"test-{uuid.uuid4().hex}", settings=QUICK)

    @app.agent("double")
    async def double(number: int) -> int:
        return 2 * number

    @app.agent("shout")
    def shout(text: str) -> str:
        return f"{text.upper()} in {threading.current_thread().name.partition('-')[0]}"

    return app


@pytest.mark.covers("S4.9", "S4.48", "S4.49", "S4.50", "S4.12")
def test_a_script_submits_and_gets_results_without_await(store_url: str) -> None:
    app = small_app(store_url)
    with app.running():
        handle = app.submit("double", 21)
        assert handle.result(PATIENCE_SECONDS) == 42
        assert app.submit("shout", "hi").result(PATIENCE_SECONDS) == "HI in endwell"
        assert handle.status() == "succeeded"
        assert handle.task().agent == "double"
        assert handle.why()["status"] == "succeeded"
        history = _history_of(app, handle.id)
    assert history == ["task.created", "task.dispatched", "task.claimed", "turn.ended", "task.succeeded"]


def _history_of(app: Endwell, task_id: str) -> list[str]:
    front = app.front()
    events = front.portal.call(front.node.store.events_of_task, app.namespace, task_id)
    return [event.type for event in events]


async def test_a_notebook_may_use_the_synchronous_front_under_its_own_event_loop(sqlite_url: str) -> None:
    app = small_app(sqlite_url)
    with app.running():  # blocks the notebook's loop, not the portal's
        assert app.submit("double", 4).result(PATIENCE_SECONDS) == 8


async def test_an_async_program_awaits_the_same_things(store_url: str) -> None:
    app = small_app(store_url)
    async with app.running() as client:
        handle = await client.submit("double", 21)
        assert await handle.result(PATIENCE_SECONDS) == 42
        assert await handle.status() == "succeeded"
        assert (await handle.why())["actions"] == []
        assert [await h.result(PATIENCE_SECONDS) for h in await client.submit_many("double", range(3))] == [
            0,
            2,
            4,
        ]


def test_many_tasks_are_submitted_at_once_and_in_order(sqlite_url: str) -> None:
    app = small_app(sqlite_url)
    with app.running():
        handles = app.submit_many("double", range(600))
        assert [handle.result(PATIENCE_SECONDS) for handle in handles] == [2 * n for n in range(600)]


def test_tasks_can_be_submitted_before_a_worker_runs(sqlite_url: str) -> None:
    app = small_app(sqlite_url)
    handle_id = app.submit("double", 5).id
    app.close()
    with app.running():
        assert app.task(handle_id).result(PATIENCE_SECONDS) == 10


def test_several_threads_can_get_a_result_more_than_once(sqlite_url: str) -> None:
    app = small_app(sqlite_url)
    with app.running():
        handle = app.submit("double", 1, delay=0.1)
        answers: list[Any] = []
        threads = [
            threading.Thread(target=lambda: answers.append(handle.result(PATIENCE_SECONDS))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [2, 2, 2, 2]
        assert handle.result(0) == 2, "an ended task needs no patience"


def test_threads_that_open_the_front_at_once_share_one(sqlite_url: str) -> None:
    app = small_app(sqlite_url)
    fronts: list[object] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        fronts.append(app.front())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app.close()
    assert len(set(map(id, fronts))) == 1


def test_an_unopenable_store_fails_at_the_first_use(tmp_path: Any) -> None:
    app = small_app(f"sqlite:///{tmp_path}/no/such/folder/x.db")
    with pytest.raises(endwell.StoreError) as refused, app.running():
        pass
    assert refused.value.code == "store_unreachable"


async def test_an_agent_may_take_no_payload(world: World) -> None:
    @world.app.agent("tick")
    async def tick() -> str:
        return "tock"

    @world.app.agent("who")
    async def who(ctx: Context) -> str:
        return ctx.agent

    await world.working()
    assert await (await world.submitted("tick")).result(PATIENCE_SECONDS) == "tock"
    assert await (await world.submitted("who")).result(PATIENCE_SECONDS) == "who"
    with pytest.raises(endwell.BadInput) as refused:
        await world.submitted("tick", {"unexpected": 1})
    assert refused.value.code == "bad_payload"


async def test_the_context_says_whose_turn_it_is(world: World) -> None:
    @world.app.agent("me")
    async def me(ctx: Context, payload: str) -> dict[str, Any]:
        return {"task": ctx.task_id, "key": ctx.agent_key, "idempotency": ctx.idempotency_key}

    @world.app.agent("us")
    def us(ctx: Context, payload: str) -> dict[str, Any]:
        ctx.progress("halfway")  # type: ignore[unused-coroutine]  # blocks in a thread
        return {"task": ctx.task_id, "retry": ctx.retry_count}

    await world.working()
    handle = await world.submitted("me/issue-42", "x", key="order-1")
    assert await handle.result(PATIENCE_SECONDS) == {
        "task": handle.id,
        "key": "issue-42",
        "idempotency": "order-1",
    }
    handle = await world.submitted("us", "x")
    assert await handle.result(PATIENCE_SECONDS) == {"task": handle.id, "retry": 0}
    assert "task.heartbeat" in await world.history(handle)


@pytest.mark.covers("S4.32", "S4.13")
async def test_the_same_key_is_the_same_task_also_after_it_ended(world: World) -> None:
    runs = []

    @world.app.agent("once")
    async def once(number: int) -> int:
        runs.append(number)
        return number

    await world.working()
    first = await world.submitted("once", 1, key="k")
    assert await first.result(PATIENCE_SECONDS) == 1
    again = await world.submitted("once", 1, key="k")

    assert again.id == first.id
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert runs == [1]
    unnamed = await world.submitted("once", 2)
    assert (await first.task()).idempotency_key == "k"
    assert (await unnamed.task()).idempotency_key == unnamed.id, "no task is without one"


@pytest.mark.covers("S4.10", "S4.51", "S4.45", "S4.53")
async def test_fail_ends_the_task_without_a_retry(world: World) -> None:
    @world.app.agent("stubborn")
    async def stubborn() -> None:
        raise Fail("the customer is gone")

    await world.working()
    handle = await world.submitted("stubborn")
    with pytest.raises(TaskFailed, match="the customer is gone") as failed:
        await handle.result(PATIENCE_SECONDS)

    assert failed.value.task.status == "failed"
    assert failed.value.task.reason == "agent_gave_up"
    assert failed.value.deliverable["kind"] == "failure_report"
    assert failed.value.deliverable["error"]["message"] == "the customer is gone"
    assert failed.value.task_id == handle.id
    history = await world.history(handle)
    assert history[-2:] == ["task.failed", "task.dlq"]
    assert terminal(history) == ["task.failed"]


async def test_retry_schedules_the_next_try_at_its_own_time(world: World) -> None:
    tries = []

    @world.app.agent("polite")
    async def polite(ctx: Context) -> int:
        tries.append(ctx.retry_count)
        if len(tries) < 2:
            raise Retry("not yet", after=timedelta(minutes=5))
        return len(tries)

    await world.working()
    handle = await world.submitted("polite")
    task = await _retry_of(world, handle, 1)
    assert 299 < (task.run_at - task.updated_at) / 1e6 <= 300
    assert tries == [0]
    world.clock.advance(301)
    assert await handle.result(PATIENCE_SECONDS) == 2
    assert tries == [0, 1]


async def _retry_of(world: World, handle: endwell.AsyncHandle, count: int) -> Any:
    async def is_there() -> bool:
        return (await handle.task()).retry_count >= count

    await eventually(is_there, f"retry {count} is scheduled")
    return await handle.task()


@pytest.mark.parametrize("after", [float("nan"), float("inf"), -5, "soon"])
async def test_a_retry_with_an_impossible_time_is_still_a_retry(sqlite_world: World, after: Any) -> None:
    world = sqlite_world

    @world.app.agent("odd")
    async def odd() -> None:
        raise Retry(after=after)

    await world.working()
    task = await _retry_of(world, await world.submitted("odd"), 1)
    assert 0 <= task.run_at - task.created_at <= 2 * 86_400_000_000


async def test_errors_in_give_up_on_are_not_retried(world: World) -> None:
    @world.app.agent("picky", give_up_on=(KeyError, ValueError))
    async def picky(kind: str) -> None:
        raise {"key": KeyError, "value": ValueError, "type": TypeError}[kind]("no")

    await world.working()
    for kind in ("key", "value"):
        with pytest.raises(TaskFailed) as failed:
            await (await world.submitted("picky", kind)).result(PATIENCE_SECONDS)
        assert failed.value.task.retry_count == 1
        assert failed.value.task.reason == "exception"
    assert (await _retry_of(world, await world.submitted("picky", "type"), 1)).status == "queued"


async def test_a_task_that_misses_its_deadline_raises_timed_out(world: World) -> None:
    @world.app.agent("never")
    async def never() -> None: ...

    handle = await world.submitted("never", deadline=60)
    world.clock.advance(61)
    await (await world.supervisor()).run_once()
    with pytest.raises(TaskTimedOut) as timed_out:
        await handle.result(PATIENCE_SECONDS)
    assert timed_out.value.task.reason == "ends_by"
    assert timed_out.value.deliverable["status"] == "timeout"


async def test_a_cancelled_task_raises_cancelled_and_cannot_be_cancelled_again(world: World) -> None:
    @world.app.agent("never")
    async def never() -> None: ...

    handle = await world.submitted("never")
    task = await handle.cancel("changed my mind")
    assert (task.status, task.reason, task.dead_letter) == ("cancelled", "changed my mind", None)
    with pytest.raises(TaskCancelled):
        await handle.result(PATIENCE_SECONDS)
    with pytest.raises(TaskEnded):
        await handle.cancel()
    assert terminal(await world.history(handle)) == ["task.cancelled"]


async def test_a_timed_out_wait_does_not_end_the_task(world: World) -> None:
    gate = asyncio.Event()

    @world.app.agent("slow")
    async def slow() -> str:
        await gate.wait()
        return "done"

    await world.working()
    handle = await world.submitted("slow")
    with pytest.raises(WaitTimedOut) as out:
        await handle.result(0.05)
    assert not isinstance(out.value, TaskNotSucceeded)
    assert out.value.task_id == handle.id
    gate.set()
    assert await handle.result(PATIENCE_SECONDS) == "done"


async def test_the_store_is_not_asked_for_a_waiter_that_left(world: World) -> None:
    @world.app.agent("never")
    async def never() -> None: ...

    handle, other = await world.submitted("never"), await world.submitted("never")
    with pytest.raises(WaitTimedOut):
        await handle.result(0.05)
    asked: list[Sequence[str]] = []
    usual = world.store.results_by_ids

    async def counted(namespace: str, ids: Sequence[str]) -> list[tuple[Task, bytes | None]]:
        asked.append(ids)
        return await usual(namespace, ids)

    world.store.results_by_ids = counted  # type: ignore[method-assign]  # the test listens in
    waiting = asyncio.ensure_future(other.result(PATIENCE_SECONDS))
    await eventually(lambda: len(asked) > 4, "the other waiter has been asked for several times")
    waiting.cancel()
    assert {each for ids in asked for each in ids} == {other.id}


async def test_a_wait_ends_when_the_store_is_closed_under_it(sqlite_url: str) -> None:
    app = small_app(sqlite_url)
    async with app.running(worker=False) as client:
        handle = await client.submit("double", 1)
        waiting = asyncio.get_running_loop().create_task(handle.result())
        await eventually(lambda: bool(client._waiters._waiting), "a waiter is there")
    with pytest.raises((EndwellError, RuntimeError)):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_a_task_that_does_not_exist_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await world.client.task("no-such-task")


def test_an_agent_is_registered_once(sqlite_url: str) -> None:
    app = small_app(sqlite_url)
    with pytest.raises(UsageError, match="already registered"):
        app.agent("double")


def _two_payloads(a: int, b: int) -> None: ...


def _yields() -> Any:
    yield 1


async def _yields_async() -> Any:
    yield 1


class _NotAFunction: ...


@pytest.mark.parametrize("function", [_two_payloads, _yields, _yields_async, _NotAFunction])
def test_a_function_that_cannot_be_an_agent_is_refused(sqlite_url: str, function: Any) -> None:
    app = Endwell(sqlite_url)
    with pytest.raises(UsageError):
        app.agent("bad")(function)
    assert app.agents == {}


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 2.5},
        {"concurrency": "3"},
        {"concurrency": True},
        {"give_up_on": "ValueError"},
        {"give_up_on": (ValueError, 3)},
        {"give_up_on": int},
    ],
)
def test_an_impossible_option_is_refused_at_registration(sqlite_url: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Endwell(sqlite_url).agent("bad", **options)


@pytest.mark.parametrize("deadline", [-1, 0, float("nan"), float("inf"), "tomorrow"])
def test_a_deadline_that_makes_no_sense_is_refused_at_registration(sqlite_url: str, deadline: Any) -> None:
    with pytest.raises(endwell.BadInput) as refused:
        Endwell(sqlite_url).agent("bad", deadline=deadline)
    assert refused.value.code == "bad_deadline"


@pytest.mark.covers("S2.27")
def test_retries_that_would_reach_the_runaway_guard_are_refused_at_registration(sqlite_url: str) -> None:
    app = Endwell(sqlite_url)
    with pytest.raises(BadSetting, match="runaway") as refused:
        app.agent("eager", retries=6)
    assert refused.value.field == "pmo.runaway_limit"
    app.agent("fine", retries=5)
