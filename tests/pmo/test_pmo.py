"""The PMO: offers, reclaims, retries and ends of tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from endwell import AsyncHandle, EndwellError, StaleAttempt, StoreError
from endwell.machine import clocks
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.pmo.service import Pmo
from endwell.pmo.watchdog import RULE_FAILURES
from endwell.store.rows import Reply
from tests.machine.planting import acting
from tests.patience import PATIENCE_SECONDS
from tests.support.manual_clock import ManualClock
from tests.support.world import START_US, Session, World, eventually, terminal


async def dispatched_tasks(world: World, session: Session) -> list[AsyncHandle]:
    """Two tasks that are offered to a worker that never claims them."""
    handles = await world.client.submit_many("clerk", [1, 2])
    world.clock.advance(2)
    assert await (await world.supervisor()).dispatcher.run_once() == 2
    return handles


async def kept_alive(world: World, session: Session, seconds: float) -> None:
    """Let time pass for a worker that only sends heartbeats."""
    while seconds > 0:
        world.clock.advance(min(seconds, 5))
        await session.beat()
        seconds -= 5


@pytest.mark.covers("S2.2", "S2.30", "T12")
async def test_only_as_many_are_offered_as_live_workers_have_room_for(clerk: World) -> None:
    await clerk.silent_session("clerk", concurrency=3)
    await clerk.client.submit_many("clerk", range(10))
    pmo = await clerk.supervisor()
    clerk.clock.advance(1)
    assert await pmo.dispatcher.run_once() == 3
    assert await pmo.dispatcher.run_once() == 0, "what is offered takes up the room"
    assert await clerk.counts() == {"queued": 7, "dispatched": 3}
    tasks = await clerk.store.tasks_page(clerk.namespace)
    assert sorted(task.dispatch_count for task in tasks) == [0] * 7 + [1] * 3, (
        "skipped dispatches do not count"
    )


async def test_workers_claim_first_and_the_pmo_offers_only_after_a_poll(
    sqlite_world: World,
) -> None:
    @sqlite_world.app.agent("clerk")
    async def clerk() -> None: ...

    await sqlite_world.silent_session("clerk")
    await sqlite_world.submitted("clerk")
    pmo = await sqlite_world.supervisor()
    assert await pmo.dispatcher.run_once() == 0
    sqlite_world.clock.advance(1)
    assert await pmo.dispatcher.run_once() == 1


async def test_without_a_live_worker_nothing_is_offered_and_no_counter_rises(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    await clerk.silent_session("clerk")
    clerk.clock.advance(3600)  # its lease lapsed long ago
    pmo = await clerk.supervisor()
    await pmo.run_once()
    task = await handle.task()
    assert (task.status, task.dispatch_count, task.retry_count) == ("queued", 0, 0)
    why = await handle.why()
    assert why["waiting_for"] == [{"kind": "no_live_worker", "id": "clerk", "deadline": why["ends_by"]}]


@pytest.mark.covers("T12")
async def test_ringing_again_does_not_delay_the_dispatch_timeout(clerk: World) -> None:
    session = await clerk.silent_session("clerk")
    (handle, _) = await dispatched_tasks(clerk, session)
    offered = await handle.task()
    pmo = await clerk.supervisor()
    for _ in range(2):
        await kept_alive(clerk, session, 10)
        await pmo.watchdog.run_once()
    rung = await handle.task()

    assert (await clerk.history(handle)).count("task.rang_again") == 2
    assert (rung.status, rung.dispatch_by) == ("dispatched", offered.dispatch_by)
    assert (rung.dispatch_count, rung.epoch) == (offered.dispatch_count, offered.epoch)

    await kept_alive(clerk, session, 10)
    await pmo.watchdog.run_once()
    after = await handle.task()
    assert (after.status, after.reason, after.retry_count) == ("queued", "dispatch_timeout", 1)
    assert after.epoch == offered.epoch + 1


@pytest.mark.covers("S2.21", "T18")
async def test_an_offer_without_a_claim_goes_to_a_person_after_four_tries(clerk: World) -> None:
    session = await clerk.silent_session("clerk")
    handle = await clerk.submitted("clerk")
    pmo = await clerk.supervisor()
    offers = 0
    while (await handle.task()).status != "blocked":
        await kept_alive(clerk, session, 5)
        offers += await pmo.dispatcher.run_once()
        await pmo.watchdog.run_once()
    task = await handle.task()

    assert (task.reason, task.owner, task.clock_rule) == ("dispatch_timeout", clerk.app.owner, "ends_by")
    assert (offers, task.dispatch_count, task.retry_count) == (4, 4, 4)
    turns = await clerk.store.turns_of_task(clerk.namespace, handle.id)
    assert [(turn.outcome, turn.error) for turn in turns] == [("timeout", "dispatch_timeout")] * 4
    why = await handle.why()
    assert why["waiting_for"] == [{"kind": "person", "id": clerk.app.owner, "deadline": why["ends_by"]}]
    assert why["actions"] == ["task unblock", "task assign", "task cancel"]
    assert why["ended_at_the_latest"] > why["ends_by"]
    assert any("ends_by keeps running" in note for note in why["notes"])

    assert (await handle.assign("ada")).owner == "ada"
    assert (await handle.why())["ended_at_the_latest"] is None
    assert (await handle.unblock()).status == "queued"
    await clerk.working()
    assert await handle.result(PATIENCE_SECONDS) == "done"


@pytest.mark.covers("S3.5", "S3.6", "S4.52", "S3.24", "T19")
async def test_a_turn_is_reclaimed_when_its_holder_s_lease_has_lapsed_and_not_before(clerk: World) -> None:
    handle = await clerk.submitted("clerk")
    session = await clerk.silent_session("clerk")
    (held,) = await clerk.claimed(session, "clerk")
    pmo = await clerk.supervisor()
    clerk.clock.advance(29)
    await pmo.run_once()
    assert (await handle.task()).attempt_id == held.task.attempt_id
    await session.beat(held)
    clerk.clock.advance(29)  # long past the first lease: only the store's lease counts, not the claim's age
    assert await pmo.reclaimer.run_once() == 0
    clerk.clock.advance(2)
    assert await pmo.reclaimer.run_once() == 1

    task = await handle.task()
    assert (task.status, task.attempt_id, task.crash_count) == ("queued", None, 1)
    assert (task.turn_id, task.epoch) == (held.task.turn_id, held.task.epoch + 1)
    (reclaimed,) = await clerk.facts(handle, "task.reclaimed")
    assert (reclaimed.session_id, reclaimed.by) == (session.id, pmo.name)
    with pytest.raises(StaleAttempt):
        await session.finish(held)
    await clerk.working()
    assert await handle.result(PATIENCE_SECONDS) == "done"


@pytest.mark.covers("S3.10")
async def test_a_waiting_task_is_not_reclaimed(clerk: World) -> None:
    """Queued, delayed, dispatched and blocked tasks have no holder whose lease could lapse."""
    session = await clerk.silent_session("clerk")
    await dispatched_tasks(clerk, session)
    await clerk.submitted("clerk", delay=3600)
    blocked = await clerk.submitted("clerk")
    await clerk.store.commit_one(
        c.Block(command_id="b-1", namespace=clerk.namespace, task_id=blocked.id, reason="look at it")
    )
    before = await clerk.counts()
    clerk.clock.advance(60)
    assert await (await clerk.supervisor()).reclaimer.run_once() == 0
    assert await clerk.counts() == before


async def test_two_supervisors_at_once_do_no_harm(clerk: World) -> None:
    other = await clerk.another_node()
    pmos = [await clerk.supervisor(), await clerk.supervisor(other)]
    session = await clerk.silent_session("clerk", concurrency=40)
    held = await clerk.client.submit_many("clerk", range(10), deadline=3600)
    taken = await clerk.claimed(session, "clerk", 10)
    due = await clerk.client.submit_many("clerk", range(10), deadline=20)
    assert len(taken) == 10
    for _ in range(8):  # they watch how the lease lapses
        clerk.clock.advance(5)
        await both(pmos)
    for handle in held:
        task = await handle.task()
        assert (task.crash_count, (await clerk.history(handle)).count("task.reclaimed")) == (1, 1)
    for handle in due:
        assert terminal(await clerk.history(handle)) == ["task.timeout"]


async def both(pmos: list[Pmo]) -> None:
    await asyncio.gather(*(pmo.run_once() for pmo in pmos))


async def test_a_pmo_that_was_away_gives_the_workers_one_heartbeat(store_url: str) -> None:
    """As after an outage: worker and PMO were frozen together, and the worker comes back."""
    async with World(store_url, settings={"worker.heartbeat_seconds": 10}) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        await world.registered("clerk")
        handle = await world.submitted("clerk")
        session = await world.silent_session("clerk")
        (held,) = await world.claimed(session, "clerk")
        pmo = await world.supervisor()
        await pmo.run_once()
        world.clock.advance(600)
        await pmo.run_once()
        assert (await handle.task()).attempt_id == held.task.attempt_id
        assert await session.beat(held) == ()
        world.clock.advance(11)
        await pmo.run_once()
        assert (await handle.task()).crash_count == 0

        world.clock.advance(5)
        await pmo.run_once()
        for _ in range(8):  # the worker is silent now, and the supervisor is there
            world.clock.advance(5)
            await pmo.run_once()
        assert (await handle.task()).crash_count == 1


async def test_a_pmo_whose_questions_all_failed_was_away(
    clerk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ticks without an answer of the store, which the workers may lack as well."""
    pmo = await clerk.supervisor()
    await pmo.run_once()

    async def unreachable(*asked: object) -> None:
        raise StoreError("gone for a while")

    with monkeypatch.context() as patch:
        patch.setattr(clerk.store, "probe", unreachable)
        for _ in range(8):
            clerk.clock.advance(5)
            with pytest.raises(StoreError):
                await pmo.run_once()
    await pmo.run_once()
    assert pmo.is_patient


class SleepingClock(ManualClock):
    """Only the wall clock advances while the machine sleeps."""

    def sleep(self, seconds: float) -> None:
        self._now_us += round(seconds * SECOND)


async def test_the_sleep_of_a_machine_counts_as_absence(sqlite_url: str) -> None:
    clock = SleepingClock(START_US)
    async with World(sqlite_url, settings={"worker.heartbeat_seconds": 10}, clock=clock) as world:

        @world.app.agent("clerk")
        async def clerk() -> None: ...

        await world.registered("clerk")
        handle = await world.submitted("clerk")
        session = await world.silent_session("clerk")
        await world.claimed(session, "clerk")
        pmo = await world.supervisor()
        await pmo.run_once()
        clock.sleep(100)
        await pmo.run_once()
        assert (await handle.task()).crash_count == 0, "its worker slept as well, and may wake up now"


async def test_a_task_on_which_a_rule_keeps_failing_is_blocked_and_holds_up_no_other(
    clerk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = await clerk.submitted("clerk", deadline=10)
    healthy = await clerk.client.submit_many("clerk", range(3), deadline=20)

    def broken(usual: Any) -> Any:
        def acting_on(task: Any, *arguments: Any) -> Any:
            if task.id == poisoned.id:
                raise ZeroDivisionError("a defect in the rule")
            return usual(task, *arguments)

        return acting_on

    usual_rules = clocks._BY_STATUS
    monkeypatch.setattr(clocks, "_BY_STATUS", acting("ends_by", broken))
    pmo = await clerk.supervisor()
    clerk.clock.advance(30)
    await pmo.watchdog.run_once()
    assert [await handle.status() for handle in healthy] == ["timeout"] * 3
    for _ in range(RULE_FAILURES - 2):
        await pmo.watchdog.run_once()
    assert await poisoned.status() == "queued"
    await pmo.watchdog.run_once()

    task = await poisoned.task()
    assert (task.status, task.reason, task.owner) == ("blocked", "clock_rule_failed", clerk.app.owner)
    assert (await poisoned.why())["actions"] == ["task unblock", "task assign", "task cancel"]
    assert (await pmo.watchdog.run_once(), await poisoned.status()) == (0, "blocked"), (
        "it is tried every tick"
    )
    monkeypatch.setattr(clocks, "_BY_STATUS", usual_rules)
    await pmo.watchdog.run_once()
    assert await poisoned.status() == "timeout", "once the rule works again, the task ends"


async def test_a_write_that_the_database_refuses_counts_as_a_failing_rule(clerk: World) -> None:
    poisoned = await clerk.submitted("clerk", deadline=10)
    usual = clerk.store.commit

    async def refusing(commands: Any) -> list[Reply]:
        if isinstance(commands[0], c.ClockFired):
            return [Reply(refusal=EndwellError("refused", code="constraint")) for _ in commands]
        return await usual(commands)

    clerk.store.commit = refusing  # type: ignore[method-assign]  # the test stands in for the database
    pmo = await clerk.supervisor()
    clerk.clock.advance(30)
    for _ in range(RULE_FAILURES):
        await pmo.watchdog.run_once()
    assert await poisoned.status() == "blocked"


async def test_a_thousand_due_clocks_fire_in_one_tick(clerk: World) -> None:
    await clerk.client.submit_many("clerk", range(1000), deadline=10)
    clerk.clock.advance(11)
    pmo = await clerk.supervisor()
    assert await pmo.watchdog.run_once() == 1000
    assert await clerk.counts() == {"timeout": 1000}
    assert await pmo.watchdog.run_once() == 0


async def test_a_thousand_lapsed_claims_are_reclaimed_in_one_tick(clerk: World) -> None:
    session = await clerk.silent_session("clerk", concurrency=1000)
    await clerk.client.submit_many("clerk", range(1000))
    while await clerk.claimed(session, "clerk", 250):
        pass
    assert await clerk.counts() == {"running": 1000}
    clerk.clock.advance(31)
    pmo = await clerk.supervisor()
    assert await pmo.reclaimer.run_once() == 1000
    assert await clerk.store.session(clerk.namespace, session.id) is not None
    assert not [s for s in await clerk.store.open_sessions(clerk.namespace) if s.id == session.id], "buried"


async def test_suspects_are_not_offered_so_that_waiting_for_their_turn_costs_them_nothing(
    clerk: World,
) -> None:
    """A task that killed its worker twice runs alone; the others wait without cost."""
    handles = await clerk.client.submit_many("clerk", range(5))
    pmo = await clerk.supervisor()
    for _ in range(2):
        session = await clerk.silent_session("clerk")
        assert len(await clerk.claimed(session, "clerk", 5)) == 5
        clerk.clock.advance(31)
        await pmo.reclaimer.run_once()
    session = await clerk.silent_session("clerk")
    held = await clerk.claimed(session, "clerk", 5)
    assert len(held) == 1, "one suspect at a time"
    for _ in range(20):
        clerk.clock.advance(10)
        await session.beat(*held)
        await pmo.run_once()
    assert await clerk.counts() == {"running": 1, "queued": 4}
    assert {(await handle.task()).retry_count for handle in handles} == {0}


async def test_the_pmo_ticks_on_after_a_failed_tick(clerk: World) -> None:
    pmo = clerk.node.pmo()
    await pmo.start()
    failures: list[Exception] = [RuntimeError("a defect")]
    usual = pmo.watchdog.run_once

    async def sometimes(away_seconds: float = 0.0) -> int:
        if failures:
            raise failures.pop()
        return await usual(away_seconds)

    pmo.watchdog.run_once = sometimes  # type: ignore[method-assign]  # the test breaks it once
    await clerk.submitted("clerk", deadline=10)
    clerk.clock.advance(11)
    run = asyncio.get_running_loop().create_task(pmo.run())
    await eventually(lambda: pmo.failures == 1)
    pmo.stop()
    await run
    await pmo.close()
