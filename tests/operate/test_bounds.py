"""`bounds`: the latest end of every task of an agent, and real runs that keep to it."""

from __future__ import annotations

from typing import Any

import pytest

from endwell.machine import clocks
from endwell.model import commands as c
from endwell.model.moments import SECOND, moment
from endwell.operate import bounds as operate_bounds
from endwell.operate.bounds import compute_bounds
from endwell.operate.record.verify import verify
from tests.support.world import World, terminal

TICK = 5.0


def bound_of(world: World, agent: str) -> dict[str, Any]:
    app = world.app
    answer = compute_bounds(
        app.settings, app.limits, [app.agents[agent].spec()], has_stamps=world.store.has_stamps
    )
    assert answer["ok"]
    (item,) = answer["items"]
    return dict(item)


async def test_the_bound_is_the_sum_of_its_parts(sqlite_world: World) -> None:
    @sqlite_world.app.agent("clerk", deadline=600)
    async def clerk() -> None: ...

    item = bound_of(sqlite_world, "clerk")
    assert [part["seconds"] for part in item["sum"]] == [600.0, TICK, TICK]
    assert item["ended_at_the_latest_seconds"] == sum(part["seconds"] for part in item["sum"]) == 610.0
    assert (item["allowed_seconds"], item["is_kept"]) == (610.0, True)
    assert [part["from"] for part in item["sum"]] == [
        "the agent's deadline, or the deadline given at submission",
        "pmo.watchdog_interval_seconds",
        "pmo.watchdog_interval_seconds",
    ]


@pytest.mark.parametrize(
    ("poll", "on_sqlite", "on_postgres"),
    [(None, 1.0, 2.1), (0.1, 0.1, 2.1), (1.0, 1.0, 2.1), (10.0, 10.0, 10.0)],
)
async def test_a_lost_ring_is_noticed_at_the_next_poll(
    store_url: str, poll: float | None, on_sqlite: float, on_postgres: float
) -> None:
    settings = {"worker.poll_seconds": poll, "worker.quiet_poll_seconds": None}
    async with World(store_url, settings=settings) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        item = bound_of(world, "clerk")
        late = on_sqlite if store_url.startswith("sqlite") else on_postgres
        assert item["lost_ring_noticed_seconds"] == pytest.approx(late)
        (lost,) = [part for part in item["silent_agent"] if "rings" in part["part"]]
        assert lost["seconds"] == pytest.approx(item["max_retries"] * late)
        assert lost["from"] == (
            "worker.poll_seconds" if late == (poll or 1.0) else "worker.quiet_poll_seconds"
        )


async def test_a_status_that_no_deadline_ends_breaks_the_bound(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    @sqlite_world.app.agent("clerk")
    async def clerk() -> None: ...

    broken = tuple(rule for rule in clocks.RULES if rule.name != "ends_by")
    monkeypatch.setattr(operate_bounds, "RULES", broken)
    app = sqlite_world.app
    answer = compute_bounds(app.settings, app.limits, [app.agents["clerk"].spec()], has_stamps=True)
    assert not answer["ok"]
    assert answer["items"][0]["ended_at_the_latest_seconds"] is None


async def in_status(world: World, status: str) -> Any:
    """A task with a deadline of a hundred seconds that no worker ends."""
    handle = await world.submitted("clerk", delay=30 if status == "delayed" else None)
    session = await world.silent_session("clerk", lease_seconds=86_400)
    if status == "dispatched":
        world.clock.advance(2)
        await (await world.supervisor()).dispatcher.run_once()
    elif status in ("running", "suspended"):
        (held,) = await world.claimed(session, "clerk")
        if status == "suspended":
            await world.store.commit_one(_suspend(world, held.task))
    elif status == "cooling":
        about = {"command_id": "b", "namespace": world.namespace, "task_id": handle.id}
        await world.store.commit_one(c.Block(**about, reason="cooling", cooldown=9999 * SECOND))
    return handle


def _suspend(world: World, task: Any) -> c.Suspend:
    call = c.Call(tool_call_id=f"{task.id}.s.1:()go#1", kind="signal", within=9999 * SECOND, name="go")
    return c.Suspend(
        command_id=world.app.runtime.ids.new(),
        namespace=world.namespace,
        task_id=task.id,
        attempt_id=task.attempt_id,
        calls=(call,),
    )


@pytest.mark.parametrize("status", ["queued", "delayed", "dispatched", "running", "suspended", "cooling"])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"pmo.dispatched_retry_seconds": 0, "pmo.dispatched_timeout_seconds": 0},
        {"pmo.watchdog_interval_seconds": 30.0},
    ],
    ids=["usual", "rules off", "a tick every 30 s"],
)
@pytest.mark.covers("S0.1", "S0.5", "S0.84", "S0.85", "S2.7")
async def test_a_real_run_keeps_to_its_bound_in_every_status(
    store_url: str, status: str, changed: dict[str, object]
) -> None:
    """Only the PMO acts, once per tick; with rules switched off and on."""
    async with World(store_url, settings=changed) as world:

        @world.app.agent("clerk", deadline=100)
        async def clerk() -> None: ...

        await world.registered("clerk")
        handle = await in_status(world, status)
        allowed = bound_of(world, "clerk")["ended_at_the_latest_seconds"]
        task = await handle.task()
        assert task.ends_by - task.run_at <= 100 * SECOND
        pmo = await world.supervisor()
        tick = world.app.settings.pmo.watchdog_interval_seconds
        promised = (await handle.why())["ended_at_the_latest"]
        assert promised == moment(task.ends_by + int((allowed - 100) * SECOND)), "both say the same"
        while not (await handle.task()).is_ended:
            await pmo.run_once()
            world.clock.advance(tick)
            assert (await world.store.now()) < _latest(task, allowed + 60), "it never ends"

        ended = await handle.task()
        assert (ended.ended_at - ended.ends_by) / SECOND <= tick + 0.5
        assert moment(ended.ended_at) <= promised
        assert len(terminal(await world.history(handle))) == 1
        inbox = await world.store.inbox_page(world.namespace, task_id=handle.id)
        assert {row.status for row in inbox} <= {"consumed", "skipped"}, "nothing is left pending"
        replayed = await verify(world.store, [world.namespace])
        assert (replayed["ok"], replayed["checked"]) == (True, 1), "its log alone comes to how it ended"


def _latest(task: Any, seconds: float) -> int:
    return int(task.created_at + 31 * SECOND + seconds * SECOND)
