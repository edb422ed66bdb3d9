"""The library as scripts, notebooks and async programs use it, and the agents that it refuses."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import endwell
from endwell import BadSetting, Endwell, EndwellError, UsageError
from tests.client.small_app import small_app
from tests.patience import PATIENCE_SECONDS
from tests.support.world import eventually

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


async def test_a_wait_ends_when_the_store_is_closed_under_it(sqlite_url: str) -> None:
    app = small_app(sqlite_url)
    async with app.running(worker=False) as client:
        handle = await client.submit("double", 1)
        waiting = asyncio.get_running_loop().create_task(handle.result())
        await eventually(lambda: bool(client._waiters._waiting), "a waiter is there")
    with pytest.raises((EndwellError, RuntimeError)):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)


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
