"""Leases: kept from a thread of their own, noticed when lost, and then nothing more is written."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from endwell import Context, StaleAttempt, WrongStatus
from endwell.model import commands as c
from endwell.model.task import ErrorInfo
from endwell.store.rows import Reply
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually, terminal


def burn(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


@pytest.mark.parametrize("how", [time.sleep, burn], ids=["blocked", "burning"])
@pytest.mark.covers("S3.4", "S3.33", "T14")
async def test_an_agent_that_blocks_the_event_loop_for_three_leases_keeps_its_lease(
    quick_world: World, how: Any
) -> None:
    world = quick_world
    runs: list[int] = []

    @world.app.agent("rude")
    async def rude() -> str:
        runs.append(1)
        how(3.6)  # three leases, on the event loop itself
        return "done"

    supervised = await world.another_node()
    await world.working()
    handle = await world.submitted("rude")
    with supervising(supervised.app):
        assert await handle.result(PATIENCE_SECONDS) == "done"

    assert runs == [1]
    history = await world.history(handle)
    assert "task.reclaimed" not in history
    assert terminal(history) == ["task.succeeded"]


@contextlib.contextmanager
def supervising(app: Any) -> Any:
    """A PMO on a loop in a thread of its own, so that a blocked loop does not hold it up."""
    stop = threading.Event()

    async def tick() -> None:
        async with app.connect() as node:
            pmo = node.pmo()
            await pmo.start()
            while not stop.is_set():
                await pmo.run_once()
                await asyncio.sleep(0.05)
            await pmo.close()

    thread = threading.Thread(target=lambda: asyncio.run(tick()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.covers("S3.33")
async def test_a_claim_answered_while_the_loop_is_blocked_is_not_reclaimed(quick_world: World) -> None:
    """The claim's answer waits behind a blocked loop for many heartbeats, and none of them can name it."""
    world = quick_world

    @world.app.agent("innocent")
    async def innocent(number: int) -> int:
        return number

    node = await world.another_node()
    usual = node.store.commit

    async def slowly(commands: Any) -> list[Reply]:
        replies = await usual(commands)
        if any(reply.taken and reply.taken[0].task.agent == "innocent" for reply in replies):
            burn(1.0)  # ten heartbeats: an agent has the loop before the worker reads its answer
        return replies

    node.store.commit = slowly  # type: ignore[method-assign]  # the test comes in between
    await world.working(node)
    handles = await world.client.submit_many("innocent", range(3))
    assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [0, 1, 2]
    for handle in handles:
        task = await handle.task()
        assert (task.crash_count, task.dispatch_count) == (0, 1)


@pytest.mark.covers("S3.1", "S3.18", "S3.19", "T7", "T14")
async def test_a_worker_that_lost_its_lease_stops_its_agents_and_commits_nothing(world: World) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @world.app.agent("long")
    async def long() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    worker = await world.working()
    first_session = worker.session_id
    handle = await world.submitted("long")
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    first = await handle.task()
    await bury(world, first_session)
    await asyncio.wait_for(stopped.wait(), PATIENCE_SECONDS)
    await eventually(lambda: worker.session_id not in ("", first_session), "a new session")
    # The same worker may take it again, as a new attempt under its new session.
    await eventually(began.is_set)

    async def is_held_again() -> bool:
        return (await handle.task()).attempt_id not in (None, first.attempt_id)

    await eventually(is_held_again)
    history = await world.history(handle)
    assert {"task.handed_back", "task.reclaimed"} & set(history)
    assert "write.refused" not in history, "a worker that lost its lease writes nothing more"
    again = await handle.task()
    assert again.session_id == worker.session_id != first_session
    assert (again.crash_count, again.turn_id) == (0, first.turn_id), "the same turn, and no process died"
    await handle.cancel()


async def bury(world: World, session_id: str) -> None:
    """What a supervisor does after the lease has lapsed, without waiting for it."""
    await world.store.commit_one(
        c.CloseSession(
            command_id=world.app.runtime.ids.new(),
            namespace=world.namespace,
            session_id=session_id,
            reason="test",
        )
    )
    await (await world.supervisor()).reclaimer.run_once()


@pytest.mark.covers("S3.9", "S3.12", "S3.8", "T7", "T16", "T19")
async def test_the_late_result_of_a_lost_attempt_is_refused_and_the_log_says_so(world: World) -> None:
    @world.app.agent("slow")
    async def slow() -> str:
        return "right"

    await world.registered("slow")
    handle = await world.submitted("slow")
    zombie = await world.silent_session("slow")
    (held,) = await world.claimed(zombie, "slow")
    world.clock.advance(31)
    await (await world.supervisor()).reclaimer.run_once()
    with pytest.raises(StaleAttempt):
        await zombie.finish(held)
    assert (await handle.task()).status == "queued"

    await world.working()
    assert await handle.result(PATIENCE_SECONDS) == "right"
    with pytest.raises(StaleAttempt):
        await zombie.finish(held)
    assert await handle.result(PATIENCE_SECONDS) == "right"
    history = await world.history(handle)
    assert history.count("write.refused") == 2
    assert terminal(history) == ["task.succeeded"]
    refused = await world.facts(handle, "write.refused")
    assert {fact.attempt_id for fact in refused} == {held.task.attempt_id}


@pytest.mark.covers("S3.8", "S3.9", "S3.12", "S3.17")
async def test_every_kind_of_write_by_an_attempt_that_is_not_the_current_one_is_refused(world: World) -> None:
    @world.app.agent("slow")
    async def slow() -> None: ...

    await world.registered("slow")
    handle = await world.submitted("slow")
    zombie = await world.silent_session("slow", lease_seconds=1)
    (held,) = await world.claimed(zombie, "slow")
    world.clock.advance(2)
    await (await world.supervisor()).reclaimer.run_once()
    heir = await world.silent_session("slow")
    (current,) = await world.claimed(heir, "slow")
    about: dict[str, Any] = {
        "namespace": world.namespace,
        "task_id": handle.id,
        "attempt_id": held.task.attempt_id,
    }
    writes: list[c.Command] = [
        c.Progress(command_id="p", **about),
        c.FailTurn(command_id="f", error=ErrorInfo(code="exception"), **about),
        c.HandBack(command_id="h", **about),
        c.Finish(command_id="r", result=b"1", result_hash="h", **about),
    ]
    for write in writes:
        with pytest.raises(StaleAttempt):
            await world.store.commit_one(write)
    task = await handle.task()
    assert (task.status, task.attempt_id) == ("running", current.task.attempt_id)
    assert (await world.history(handle)).count("write.refused") == len(writes)
    assert (await heir.finish(current)).status == "succeeded"


@pytest.mark.covers("S3.3", "S3.7")
async def test_a_task_can_be_claimed_by_name_and_only_under_a_lease_that_holds(world: World) -> None:
    @world.app.agent("slow")
    async def slow(number: int) -> None: ...

    await world.registered("slow")
    _, wanted = await world.client.submit_many("slow", [1, 2])
    late, live = [await world.silent_session("slow", lease_seconds=seconds) for seconds in (1, 60)]
    world.clock.advance(2)

    def claim(session_id: str, attempt_id: str) -> c.Claim:
        return c.Claim(
            command_id=attempt_id,
            namespace=world.namespace,
            task_id=wanted.id,
            attempt_id=attempt_id,
            session_id=session_id,
        )

    with pytest.raises(StaleAttempt):
        await world.store.commit_one(claim(late.id, "a1"))
    await world.store.commit_one(claim(live.id, "a2"))
    with pytest.raises(WrongStatus):
        await world.store.commit_one(claim(live.id, "a3"))
    task = await wanted.task()
    assert (task.status, task.attempt_id, task.session_id) == ("running", "a2", live.id)
    assert await world.counts() == {"queued": 1, "running": 1}


@pytest.mark.covers("S3.34", "S3.45")
def test_the_rule_that_a_worker_stops_after_losing_its_lease_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert "A worker that has lost its lease stops" in text
    assert "issues no further write" in text


def test_the_lease_that_a_slow_pattern_costs_is_documented() -> None:
    """Python's `re` holds the GIL, so no thread of the process can renew a lease."""
    text = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert "longer than\n  `worker.lease_seconds` costs the worker its lease" in text


@pytest.mark.covers("S3.4", "T14", "T16")
async def test_a_heartbeat_renews_only_current_attempts_and_names_the_stale(world: World) -> None:
    @world.app.agent("slow")
    async def slow() -> None: ...

    await world.registered("slow")
    await world.client.submit_many("slow", [None, None])
    session = await world.silent_session("slow")
    kept, lost = await world.claimed(session, "slow", 2)
    await (await world.client.task(lost.task.id)).cancel()

    assert await session.beat(kept, lost) == (lost.task.attempt_id,)
    world.clock.advance(25)
    assert await session.beat(kept) == ()
    world.clock.advance(25)  # past the first lease, within the second
    assert await (await world.supervisor()).reclaimer.run_once() == 0
    assert (await world.client.task(kept.task.id)).id == kept.task.id


@pytest.mark.covers("S3.35", "S3.18", "S3.45")
@pytest.mark.parametrize("asks", ["by a word of progress", "before a long step"])
async def test_a_ring_tells_a_worker_at_once_that_its_attempt_is_stale(store_url: str, asks: str) -> None:
    """No bell and no heartbeat has told the worker yet: it learns by asking."""
    async with World(store_url, settings={"worker.heartbeat_seconds": 10}) as world:
        world.app.is_silent = True
        node = await world.another_node()
        began, gate = asyncio.Event(), asyncio.Event()
        left: list[str] = []
        done: list[str] = []

        @world.app.agent("careful")
        async def careful(ctx: Context) -> None:
            began.set()
            await gate.wait()
            try:
                if asks == "before a long step":
                    await ctx.step("long", done.append, "too late", timeout=1000)
                else:
                    await ctx.progress("before the long step")
            except StaleAttempt:
                left.append(ctx.attempt_id)
                raise

        await world.working(node)
        handle = await world.submitted("careful")
        await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
        attempt = (await handle.task()).attempt_id
        await handle.cancel()
        gate.set()
        await eventually(lambda: bool(left))
        assert (left, done) == ([attempt], [])
        history = await world.history(handle)
    assert terminal(history) == ["task.cancelled"]
    assert history[-1] == "write.refused"


async def test_losing_the_session_while_claiming_starts_over_once(world: World) -> None:
    """Claim and heartbeat learn of it at the same time; two new sessions would be one too many."""

    @world.app.agent("echo")
    async def echo(number: int) -> int:
        return number

    worker = await world.working()
    old = ""
    for round_ in range(3):
        old = worker.session_id
        await bury(world, old)
        handle = await world.submitted("echo", round_)
        assert await handle.result(PATIENCE_SECONDS) == round_
        await eventually(lambda old=old: worker.session_id not in ("", old))  # type: ignore[misc]
    worker._session.lose_lease(old, "late news of a session that is long gone")
    assert worker.session_id not in ("", old)
    open_workers = [s for s in await world.store.open_sessions(world.namespace) if s.kind == "worker"]
    assert [session.id for session in open_workers] == [worker.session_id]


@pytest.mark.covers("S3.18")
async def test_turns_granted_after_the_lease_was_lost_do_not_begin(world: World) -> None:
    ran: list[int] = []

    @world.app.agent("echo")
    async def echo(number: int) -> None:
        ran.append(number)

    node = await world.another_node()
    worker = await world.started_worker(node)
    usual = node.store.commit

    async def losing(commands: Sequence[c.Command]) -> list[Reply]:
        replies = await usual(commands)
        if any(reply.taken for reply in replies):
            worker._session.lose_lease(worker.session_id, "while we asked")
        return replies

    node.store.commit = losing  # type: ignore[method-assign]  # the test comes in between
    handle = await world.submitted("echo", 1)
    assert not await worker.run_once()
    await asyncio.sleep(0)
    assert ran == []
    task = await handle.task()
    assert task.status in ("running", "queued"), "its old session has it, or it was handed back already"
    assert task.crash_count == 0


async def test_a_clock_set_back_loses_no_lease(sqlite_world: World) -> None:
    world = sqlite_world
    gate, began = asyncio.Event(), asyncio.Event()

    @world.app.agent("long")
    async def long() -> str:
        began.set()
        await gate.wait()
        return "done"

    await world.working()
    handle = await world.submitted("long")
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    world.clock.set(world.clock.now_us() - 3600 * 1_000_000)
    pmo = await world.supervisor()
    await pmo.run_once()
    gate.set()
    assert await handle.result(PATIENCE_SECONDS) == "done"
    task = await handle.task()
    assert task.crash_count == 0
    times = [event.at for event in await world.events(handle)]
    assert times == sorted(times), "within a task time never runs back"
