"""Real worker processes: stopped, killed, frozen, and killed by their own tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from endwell import AsyncHandle, TaskFailed
from endwell.pmo.service import Pmo
from endwell.runtime import SystemClock
from endwell.runtime.child_process import ChildProcess
from tests.patience import PATIENCE_SECONDS
from tests.support.worker_process import FAST_EXIT, app_for, started
from tests.support.world import TINY, World, eventually, terminal


class Crew:
    """Worker processes on one store, and a supervisor in the test's own process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.children: list[ChildProcess] = []
        world.app.agents.update(app_for(world.app.url, world.namespace, TINY).agents)
        self.pmo: Pmo

    def worker(self, settings: dict[str, object] | None = None, **options: Any) -> ChildProcess:
        child = started(self.world.app.url, self.world.namespace, {**TINY, **(settings or {})}, **options)
        self.children.append(child)
        return child

    async def supervised(self, condition: Any, what: str = "the condition holds") -> None:
        """Let the supervisor tick until the condition holds."""

        async def ticked() -> bool:
            await asyncio.sleep(0.02)
            await self.pmo.run_once()
            return bool(await condition())

        await eventually(ticked, what)

    async def all_ended(self, handles: list[AsyncHandle]) -> bool:
        tasks = await self.world.store.tasks_by_ids(self.world.namespace, [handle.id for handle in handles])
        return all(task.is_ended for task in tasks)

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.wait(PATIENCE_SECONDS)
            child.close()


@pytest.fixture
async def crew(store_url: str) -> AsyncIterator[Crew]:
    async with World(store_url, settings=TINY, clock=SystemClock()) as world:
        crew = Crew(world)
        crew.pmo = await world.supervisor()
        try:
            yield crew
        finally:
            crew.end()


async def exit_code(child: ChildProcess) -> int:
    return await asyncio.get_running_loop().run_in_executor(None, child.wait, PATIENCE_SECONDS)


async def told_to_stop(child: ChildProcess) -> None:
    """Send it the signal, and wait until it has heard it: two that come at once may be one."""
    child.terminate()
    heard = await asyncio.get_running_loop().run_in_executor(None, child.read_line, PATIENCE_SECONDS)
    assert heard == "draining"


async def test_sigterm_finishes_what_it_can_hands_back_the_rest_and_exits_0(
    crew: Crew, tmp_path: Path
) -> None:
    child = crew.worker({"worker.drain_seconds": 2.0}, concurrency=3)
    short = await crew.world.submitted("until", str(tmp_path / "enough"))
    long = await crew.world.submitted("nap", 60)
    blocked = await crew.world.submitted("block", 60)
    for handle in (short, long, blocked):
        await crew.world.in_status(handle, "running")
    await told_to_stop(child)
    late = await crew.world.submitted("echo", 1)
    (tmp_path / "enough").touch()  # from now on there would be room for it

    assert await exit_code(child) == 0, "and does not wait for those that take a minute"
    assert await short.status() == "succeeded"
    assert await late.status() == "queued", "no new claims"
    for handle in (long, blocked):
        task = await handle.task()
        assert task.status == "queued"
        assert (task.retry_count, task.crash_count, task.dispatch_count) == (0, 0, 1)
        assert (await crew.world.history(handle))[-1] == "task.handed_back"
    sessions = [s for s in await crew.world.store.open_sessions(crew.world.namespace) if s.kind == "worker"]
    assert sessions == [], "its session was closed"

    crew.worker()
    assert await late.result(PATIENCE_SECONDS) == 1
    await crew.world.in_status(long, "running")
    assert (await long.task()).dispatch_count == 1, "handing back cost it nothing"
    await long.cancel()
    await blocked.cancel()


async def test_a_second_signal_ends_at_once(crew: Crew) -> None:
    child = crew.worker({"worker.drain_seconds": 60})
    handle = await crew.world.submitted("nap", 60)
    await crew.world.in_status(handle, "running")
    await told_to_stop(child)
    assert child.poll() is None, "it drains"
    child.terminate()
    assert await exit_code(child) == FAST_EXIT
    await handle.cancel()


@pytest.mark.covers("S3.24", "S3.33", "S4.12", "S4.52", "S4.13", "T19", "S1.1")
async def test_what_a_killed_worker_held_is_finished_by_another_exactly_once(
    crew: Crew, tmp_path: Path
) -> None:
    victim = crew.worker()
    handles = await crew.world.client.submit_many("until", [str(tmp_path / "enough")] * 5)
    for handle in handles:
        await crew.world.in_status(handle, "running")
    victim.kill()
    (tmp_path / "enough").touch()
    other = crew.worker()

    await crew.supervised(lambda: crew.all_ended(handles), "another worker finishes")
    for handle in handles:
        assert await handle.result(PATIENCE_SECONDS) == other.pid
        history = await crew.world.history(handle)
        assert terminal(history) == ["task.succeeded"]
        assert history.count("task.reclaimed") == 1
        task = await handle.task()
        assert (task.crash_count, task.dispatch_count, task.retry_count) == (1, 2, 0)


@pytest.mark.covers("S3.1", "S3.12", "S3.18", "S4.12", "T7")
async def test_a_worker_frozen_past_its_lease_changes_nothing_when_it_wakes(
    crew: Crew, tmp_path: Path
) -> None:
    """Its successor has the same name and host, as after a restart while the old process still lives."""
    frozen = crew.worker(name="twin")
    handles = await crew.world.client.submit_many("until", [str(tmp_path / "enough")] * 3)
    for handle in handles:
        await crew.world.in_status(handle, "running")
    await crew.world.freeze_between_commits(frozen)
    (tmp_path / "enough").touch()
    other = crew.worker(name="twin")
    await crew.supervised(lambda: crew.all_ended(handles), "the other one finishes")
    before = [await handle.task() for handle in handles]
    frozen.thaw()

    async def has_lease_again() -> bool:
        """Its lease had lapsed: it renews the session, or opens a new one if that is closed."""
        now = await crew.world.store.now()
        open_ = await crew.world.store.open_sessions(crew.world.namespace)
        return any(one.pid == frozen.pid and one.lease_until > now for one in open_)

    await crew.supervised(has_lease_again, "the woken worker has a lease again")
    for handle, task in zip(handles, before, strict=True):
        assert await handle.result(PATIENCE_SECONDS) == other.pid
        after = await handle.task()
        assert (after.status, after.deliverable_card, after.ended_at) == (
            task.status,
            task.deliverable_card,
            task.ended_at,
        )
        assert terminal(await crew.world.history(handle)) == ["task.succeeded"]
    other.kill()
    assert (
        await (await crew.world.submitted("echo", "still of use")).result(PATIENCE_SECONDS) == "still of use"
    )


@pytest.mark.covers("S2.22", "S4.53")
async def test_a_task_that_kills_its_worker_ends_alone_and_its_neighbours_succeed(crew: Crew) -> None:
    killer = await crew.world.submitted("killer")
    neighbours = await crew.world.client.submit_many("nap", [0.25] * 6)
    everything = [killer, *neighbours]
    child, deaths = crew.worker(), 0

    async def goes_on() -> bool:
        nonlocal child, deaths
        if child.poll() is not None:
            deaths += 1
            child = crew.worker()  # a process manager starts it again
        return await crew.all_ended(everything)

    await crew.supervised(goes_on, "everything has ended")
    with pytest.raises(TaskFailed) as failed:
        await killer.result(PATIENCE_SECONDS)
    assert (failed.value.task.reason, failed.value.task.dead_letter) == ("crash_limit", "open")
    assert failed.value.task.crash_count == deaths == 3
    assert [await handle.status() for handle in neighbours] == ["succeeded"] * 6
    assert (await crew.world.history(killer))[-1] == "task.dlq"
    for handle in everything:
        assert len(terminal(await crew.world.history(handle))) == 1


def overlapping(spans: list[tuple[float, float, int]]) -> int:
    """How many ran at the same time at most."""
    return max(sum(1 for b, e, _ in spans if b <= began < e) for began, _, _ in spans)


@pytest.mark.parametrize(("agent", "most"), [("scarce", 2), ("serial/one-key", 1)])
@pytest.mark.covers("S3.1")
async def test_limits_and_keys_hold_over_two_processes(crew: Crew, agent: str, most: int) -> None:
    first, second = crew.worker(concurrency=5), crew.worker(concurrency=5)
    handles = await crew.world.client.submit_many(agent, range(20))
    spans = [await handle.result(PATIENCE_SECONDS) for handle in handles]
    assert overlapping(spans) == most
    assert {pid for _, _, pid in spans} <= {first.pid, second.pid}
