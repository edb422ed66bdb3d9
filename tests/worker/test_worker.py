"""The worker: what it takes, in which order, how much at once, and how little it asks when idle."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from endwell import Client, Context
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.runtime import SystemClock
from endwell.store.contract import Store
from endwell.store.rows import Reply
from endwell.worker.worker import CLAIM_LIMIT, Worker
from tests.patience import PATIENCE_SECONDS
from tests.support.world import TINY, World, eventually, terminal

RARE_LOOKS = dict.fromkeys(("worker.poll_seconds", "worker.watchdog_interval_seconds"), 600)
"""A worker that is faster than this was woken, or knew the time by itself."""


class Listener:
    """Listens in on what is handed to a store."""

    def __init__(self, store: Store) -> None:
        self.commits: list[list[str]] = []
        self.questions = 0
        self._commit, self._rows = store.commit, store._rows
        store.commit = self._heard_commit  # type: ignore[method-assign]  # the test listens in
        store._rows = self._heard_rows  # type: ignore[method-assign]  # likewise

    async def _heard_commit(self, commands: Sequence[c.Command]) -> list[Reply]:
        self.commits.append([type(command).__name__ for command in commands])
        return await self._commit(commands)

    async def _heard_rows(self, name: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        self.questions += 1
        return await self._rows(name, *parameters)

    @property
    def work(self) -> list[list[str]]:
        """Everything but heartbeats."""
        return [commit for commit in self.commits if commit != ["Heartbeat"]]


async def drained(worker: Worker, client: Client) -> None:
    """Run rounds by hand until nothing is waiting or running."""
    while True:
        await worker.run_once()
        counts = await client.store.counts_by_status(client.namespace)
        if not {"queued", "dispatched", "running"} & counts.keys():
            return


@pytest.mark.covers("S4.7", "S4.8", "S4.9")
async def test_a_task_is_queued_until_a_worker_takes_it_and_running_until_it_has_succeeded(
    world: World,
) -> None:
    gate = asyncio.Event()

    @world.app.agent("clerk")
    async def clerk() -> None:
        await gate.wait()

    handle = await world.submitted("clerk")
    assert await handle.status() == "queued"
    await world.working()
    await world.in_status(handle, "running")
    gate.set()
    await handle.result(PATIENCE_SECONDS)
    assert await handle.status() == "succeeded"


@pytest.mark.covers("S3.2", "S3.7", "S4.49")
async def test_tasks_are_claimed_in_batches_and_handed_in_with_the_next_claim(world: World) -> None:
    @world.app.agent("echo")
    async def echo(number: int) -> int:
        return number

    worker = await world.started_worker(concurrency=1000)
    handles = await world.client.submit_many("echo", range(2 * CLAIM_LIMIT))
    listener = Listener(world.store)
    await drained(worker, world.client)

    assert [await handle.result(PATIENCE_SECONDS) for handle in handles[:5]] == [0, 1, 2, 3, 4]
    assert await world.counts() == {"succeeded": 2 * CLAIM_LIMIT}
    assert len(listener.work) <= 6, "hundreds of tasks share a handful of commits"
    assert any({"Finish", "ClaimNext"} <= set(commit) for commit in listener.work)
    attempts = {e.attempt_id for h in handles for e in await world.events(h) if e.type == "task.claimed"}
    assert len(attempts) == 2 * CLAIM_LIMIT, "every claim makes an attempt of its own"


async def test_a_worker_holds_no_more_than_its_concurrency(world: World) -> None:
    running, most = 0, 0

    @world.app.agent("busy")
    async def busy(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    await world.working(concurrency=3)
    for handle in await world.client.submit_many("busy", range(20)):
        await handle.result(PATIENCE_SECONDS)
    assert most == 3


async def test_the_most_urgent_task_starts_first_then_the_oldest(world: World) -> None:
    order: list[str] = []

    @world.app.agent("clerk")
    async def clerk(name: str) -> None:
        order.append(name)

    for name, priority in [
        ("low", -5),
        ("usual-1", 0),
        ("usual-2", 0),
        ("high", 9),
        ("higher-than-usual", 1),
    ]:
        await world.submitted("clerk", name, priority=priority)
        world.clock.advance(0.001)
    await drained(await world.started_worker(concurrency=1), world.client)
    assert order == ["high", "higher-than-usual", "usual-1", "usual-2", "low"]


async def test_a_delayed_task_starts_when_its_time_has_come_and_not_before(world: World) -> None:
    @world.app.agent("later")
    async def later() -> str:
        return "now"

    worker = await world.started_worker()
    handle = await world.submitted("later", delay=3600)
    assert not await worker.run_once()
    assert await handle.status() == "queued"
    assert (await handle.why())["waiting_for"][0]["kind"] == "start_time"
    world.clock.advance(3599)
    worker = await world.started_worker()  # the other's lease has lapsed
    assert not await worker.run_once()
    world.clock.advance(2)
    worker._source.may_have_work = True
    assert await worker.run_once()
    await drained(worker, world.client)
    assert await handle.result(PATIENCE_SECONDS) == "now"


async def test_a_delayed_task_starts_on_time_without_a_ring_or_a_poll(store_url: str) -> None:
    settings = {**TINY, **RARE_LOOKS}
    async with World(store_url, settings=settings, clock=SystemClock()) as world:

        @world.app.agent("later")
        async def later() -> None: ...

        await world.working()
        handle = await world.submitted("later", delay=0.3)
        await handle.result(PATIENCE_SECONDS)
        task = await handle.task()
    assert 0 <= (task.started_at or 0) - task.run_at < 300 * SECOND, "long before a poll or a tick"


async def test_an_idle_worker_starts_new_work_at_once_although_it_polls_rarely(store_url: str) -> None:
    settings = {**TINY, **RARE_LOOKS}
    async with World(store_url, settings=settings, clock=SystemClock()) as world:

        @world.app.agent("echo")
        async def echo(number: int) -> int:
            return number

        await world.working()
        for number in range(5):  # each after the worker has gone to rest
            assert await (await world.submitted("echo", number)).result(PATIENCE_SECONDS) == number


async def test_a_ring_that_comes_while_the_worker_looks_is_not_lost(store_url: str) -> None:
    """The task is stored after the claim has looked and before its answer is read."""
    settings = {**TINY, **RARE_LOOKS}
    async with World(store_url, settings=settings, clock=SystemClock()) as world:

        @world.app.agent("echo")
        async def echo(number: int) -> int:
            return number

        node = await world.another_node()
        usual = node.store.commit
        submitted: list[Any] = []

        async def with_a_task_behind_it(commands: Sequence[c.Command]) -> list[Reply]:
            replies = await usual(commands)
            if any(isinstance(command, c.ClaimNext) for command in commands) and not submitted:
                rung = asyncio.Event()
                node.bell.subscribe(lambda topics: rung.set())
                submitted.append(await world.submitted("echo", 7))
                await asyncio.wait_for(rung.wait(), PATIENCE_SECONDS)
            return replies

        node.store.commit = with_a_task_behind_it  # type: ignore[method-assign]  # the test comes in between
        await world.working(node)
        await eventually(lambda: bool(submitted))
        assert await submitted[0].result(PATIENCE_SECONDS) == 7


async def test_with_every_ring_lost_everything_still_finishes(store_url: str) -> None:
    async with World(store_url, settings=TINY, clock=SystemClock()) as world:
        world.app.is_silent = True
        silent = await world.another_node()

        @world.app.agent("echo")
        async def echo(number: int) -> int:
            if number % 5 == 0:
                await asyncio.sleep(0.03)
            return number

        worker = await world.working(silent, concurrency=4)
        handles = await silent.client.submit_many("echo", range(30))
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(30))
        late = await silent.client.submit("echo", 100)
        assert await late.result(PATIENCE_SECONDS) == 100
        cancelled = await silent.client.submit("echo", 1, delay=30)
        await cancelled.cancel()
        assert worker.failures == 0


async def test_a_worker_polls_although_endings_wake_it_all_the_time(store_url: str) -> None:
    """Endings wake the worker more often than it polls; what no ring announced must be found all the same."""
    settings = {**TINY, "worker.poll_seconds": 0.3}
    async with World(store_url, settings=settings, clock=SystemClock()) as world:
        world.app.is_silent = True
        silent = await world.another_node()
        found, ended = asyncio.Event(), [0]

        @world.app.agent("step")
        async def step(seconds: float) -> None:
            await asyncio.sleep(seconds)
            ended[0] += not found.is_set()

        @world.app.agent("unannounced")
        async def unannounced() -> None:
            found.set()

        steps = [0.1 * n for n in range(1, 200)]
        await silent.client.submit_many("step", steps)
        worker = await world.started_worker(silent, concurrency=300)
        await worker.run_once()
        await silent.client.submit("unannounced")
        run = asyncio.get_running_loop().create_task(worker.run())
        await asyncio.wait_for(found.wait(), PATIENCE_SECONDS)
        assert ended[0] < len(steps), "while turns still ended"
        worker.stop()
        await run


async def test_an_idle_worker_claims_again_only_after_a_ring_or_a_look(world: World) -> None:
    @world.app.agent("a")
    async def a() -> None: ...

    worker = await world.started_worker()
    await worker.run_once()
    listener = Listener(world.store)
    for _ in range(10):
        assert not await worker.run_once()
        await worker._source.look_for_work(has_room=True)  # ten polls in vain
    assert listener.work == []
    assert await world.store.events_after(world.namespace, "", 1) == []
    await world.submitted("a")
    await worker._source.look_for_work(has_room=True)
    assert await worker.run_once()


async def test_the_limit_of_an_agent_holds_over_two_nodes(quick_world: World) -> None:
    world = quick_world
    running, most = 0, 0

    @world.app.agent("scarce", concurrency=2)
    async def scarce(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    await world.working(concurrency=10)
    await world.working(await world.another_node(), concurrency=10)
    for handle in await world.client.submit_many("scarce", range(24)):
        await handle.result(PATIENCE_SECONDS)
    assert most == 2


@pytest.mark.covers("S3.1")
async def test_a_key_is_served_one_task_at_a_time_over_two_nodes(quick_world: World) -> None:
    world = quick_world
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @world.app.agent("serial")
    async def serial(ctx: Context, number: int) -> None:
        key = ctx.agent_key or ""
        running[key] += 1
        most[key] = max(most[key], running[key])
        await asyncio.sleep(0.003)
        running[key] -= 1

    handles = [await world.submitted(f"serial/{key}", n) for n in range(10) for key in ("x", "y")]
    await world.working(concurrency=10)
    await world.working(await world.another_node(), concurrency=10)
    for handle in handles:
        await handle.result(PATIENCE_SECONDS)
    assert most == {"x": 1, "y": 1}


async def test_the_tasks_of_a_key_are_served_in_the_order_of_their_submission(world: World) -> None:
    order: list[int] = []

    @world.app.agent("serial")
    async def serial(number: int) -> None:
        order.append(number)

    for number in range(10):
        await world.submitted("serial/key", number)
        world.clock.advance(0.001)
    await drained(await world.started_worker(), world.client)
    assert order == list(range(10))


async def test_two_workers_share_the_work_and_finish_each_task_once(quick_world: World) -> None:
    """Both have the same name and host; only their sessions tell them apart."""
    world = quick_world
    done: Counter[int] = Counter()

    @world.app.agent("echo")
    async def echo(number: int) -> None:
        await asyncio.sleep(0.002)
        done[number] += 1

    first = await world.working(name="twin", concurrency=5)
    second = await world.working(await world.another_node(), name="twin", concurrency=5)
    assert first.session_id != second.session_id
    handles = await world.client.submit_many("echo", range(60))
    for handle in handles:
        await handle.result(PATIENCE_SECONDS)
    assert set(done.values()) == {1}
    assert all([terminal(await world.history(h)) == ["task.succeeded"] for h in handles[:10]])
    assert first.refused == second.refused == 0
    holders = {claim.session_id for h in handles for claim in await world.facts(h, "task.claimed")}
    assert holders == {first.session_id, second.session_id}, "both took part"
