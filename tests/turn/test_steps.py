"""Steps: what is recorded is never computed again, and nothing a step does hangs or harms its turn."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from endwell import AsyncHandle, Context, Fail, SyncContext, TaskFailed
from endwell.errors import ReplayMismatch, StaleAttempt, StepFailed, StepTimeout, UsageError
from endwell.model.commands import TaskCommand
from endwell.operate.questions import whole_task
from endwell.policy.limits import SECOND
from endwell.policy.retry import RetryPolicy
from endwell.runtime import SystemClock
from tests.patience import PATIENCE_SECONDS
from tests.support.world import QUICK, World, eventually


@dataclass
class Plan:
    title: str
    parts: tuple[int, ...]


class Counting:
    """Counts its calls: what a step's function did in the outside world."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, value: Any = None) -> Any:
        self.calls.append(value)
        return value


async def recorded(world: World, handle: AsyncHandle) -> list[Any]:
    return await world.facts(handle, "step.recorded")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_recorded_step_is_not_run_again_when_the_turn_is(world: World, kind: str) -> None:
    seen = Counting()

    @world.app.agent("async", delays=[0.01])
    async def run(ctx: Context) -> Any:
        value = await ctx.step("look", seen, 7)
        if ctx.retry_count == 0:
            raise RuntimeError("after the record")
        return value

    @world.app.agent("sync", delays=[0.01])
    def run_in_thread(ctx: SyncContext) -> Any:
        value = ctx.step("look", seen, 7)
        if ctx.retry_count == 0:
            raise RuntimeError("after the record")
        return value

    await world.working()
    handle = await world.submitted(kind)
    await eventually(lambda: bool(seen.calls))
    await eventually(lambda: _moved(world, handle), "the second turn has ended")

    assert await handle.result(PATIENCE_SECONDS) == 7
    assert seen.calls == [7]
    assert [(fact.step, fact.result_type) for fact in await recorded(world, handle)] == [
        ("1:()look#1", "success")
    ]


async def _moved(world: World, handle: AsyncHandle) -> bool:
    """Time stands still in these worlds: a retry begins when the test lets it pass."""
    world.clock.advance(0.05)
    return (await handle.task()).is_ended


async def test_every_command_of_a_task_has_an_id_of_its_own(world: World) -> None:
    @world.app.agent("busy", delays=[0.01])
    async def run(ctx: Context) -> int:
        await ctx.draft("so far")
        for number in range(3):
            await ctx.step("look", Counting(), (ctx.retry_count, number))
        if ctx.retry_count == 0:
            raise RuntimeError("after the records")
        return 1

    await world.working()
    handle = await world.submitted("busy")
    await eventually(lambda: _moved(world, handle), "the second turn has ended")

    events = await world.store.events_of_task(world.namespace, handle.id)
    said = ("task.created", "task.draft_kept", "step.recorded", "turn.ended")
    ids = [event.command_id for event in events if event.type in said]
    assert len(ids) == 1 + 2 + 3 + 2
    assert len(set(ids)) == len(ids)


async def test_a_crashed_workers_steps_are_not_run_again_by_the_next(world: World) -> None:
    seen = Counting()
    stuck = asyncio.Event()

    @world.app.agent("clerk")
    async def run(ctx: Context) -> Any:
        one = await ctx.step("one", seen, 1)
        if not stuck.is_set():
            stuck.set()
            await asyncio.Event().wait()
        return one + await ctx.step("two", seen, 2)

    first = await world.working(await world.another_node())
    handle = await world.submitted("clerk")
    await stuck.wait()
    first._turns.abandon_all()  # as if its process had ended
    assert first._session._heartbeat is not None
    await first._session._heartbeat.stop()  # a last beat after the clock has moved would renew the lease
    world.clock.advance(31)
    pmo = await world.supervisor()
    await world.working()

    async def ended() -> bool:
        await pmo.run_once()
        return (await handle.task()).is_ended

    await eventually(ended)
    assert await handle.result(PATIENCE_SECONDS) == 3
    assert seen.calls == [1, 2]


async def test_the_first_run_and_a_replay_see_the_same_value(sqlite_world: World) -> None:
    world = sqlite_world
    seen: list[Any] = []

    def plan() -> Plan:
        return Plan("a", (1, 2))

    def loose() -> Any:
        return Plan("b", (3,))

    @world.app.agent("planner", delays=[0.01])
    async def run(ctx: Context) -> None:
        seen.append(
            [
                await ctx.step("typed", plan),
                await ctx.step("loose", loose),
                await ctx.step("said", loose, result=Plan),
            ]
        )
        if ctx.retry_count == 0:
            raise RuntimeError

    await world.working()
    handle = await world.submitted("planner")
    await eventually(lambda: _moved(world, handle))

    assert seen[0] == seen[1] == [Plan("a", (1, 2)), {"title": "b", "parts": [3]}, Plan("b", (3,))]


async def test_steps_of_one_name_are_told_apart_by_their_number(sqlite_world: World) -> None:
    @sqlite_world.app.agent("clerk")
    async def run(ctx: Context) -> list[int]:
        return [await ctx.step("square", lambda n=n: n * n) for n in range(3)]

    await sqlite_world.working()
    handle = await sqlite_world.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == [0, 1, 4]
    assert [fact.step for fact in await recorded(sqlite_world, handle)] == [
        "1:()square#1",
        "1:()square#2",
        "1:()square#3",
    ]


async def test_two_steps_of_one_name_at_once_are_refused(sqlite_world: World) -> None:
    @sqlite_world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step("same", asyncio.sleep, 0.01),
            ctx.step("same", asyncio.sleep, 0.01),
            return_exceptions=False,
        )

    await sqlite_world.working()
    with pytest.raises(TaskFailed) as failed:
        await (await sqlite_world.submitted("clerk")).result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "ambiguous_step"


async def test_a_replay_with_other_inputs_is_refused_where_asked_for(sqlite_world: World) -> None:
    world = sqlite_world
    seen = Counting()

    @world.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> Any:
        same = await ctx.step("same", seen, "x", check_inputs=True)
        await ctx.step("free", seen, ctx.retry_count)
        await ctx.step("checked", seen, ctx.retry_count, check_inputs=True)
        if ctx.retry_count == 0:
            raise RuntimeError
        return same

    await world.working()
    handle = await world.submitted("clerk")
    await eventually(lambda: _moved(world, handle))
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == ReplayMismatch.code
    assert seen.calls == ["x", 0, 0]


async def test_a_record_that_no_longer_fits_the_code_is_a_mismatch(sqlite_world: World) -> None:
    world = sqlite_world
    kinds: list[Any] = [int, str]

    @world.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> None:
        await ctx.step("one", lambda: 1, result=kinds[ctx.retry_count])
        raise RuntimeError

    await world.working()
    handle = await world.submitted("clerk")
    await eventually(lambda: _moved(world, handle))
    assert (await handle.task()).reason == "replay_mismatch"


async def test_a_value_that_is_not_of_the_promised_type_is_not_recorded(sqlite_world: World) -> None:
    def wrong() -> int:
        return "five"  # type: ignore[return-value]

    @sqlite_world.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.step("five", wrong)

    await sqlite_world.working()
    handle = await sqlite_world.submitted("clerk")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "bad_step_result"
    assert await recorded(sqlite_world, handle) == []


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_synchronous_step_never_blocks_the_event_loop(sqlite_world: World, kind: str) -> None:
    here = threading.get_ident()

    @sqlite_world.app.agent("async")
    async def run(ctx: Context) -> bool:
        return bool(await ctx.step("where", threading.get_ident) == here)

    @sqlite_world.app.agent("sync")
    def run_in_thread(ctx: SyncContext) -> bool:
        return bool(ctx.step("where", threading.get_ident) == here)

    await sqlite_world.working()
    assert await (await sqlite_world.submitted(kind)).result(PATIENCE_SECONDS) is False


async def test_steps_of_agents_that_hold_every_thread_still_run(sqlite_world: World) -> None:
    @sqlite_world.app.agent("clerk")
    def run(ctx: SyncContext, number: int) -> int:
        return int(ctx.step("double", lambda: number * 2))

    await sqlite_world.working(concurrency=2)
    handles = [await sqlite_world.submitted("clerk", n) for n in range(6)]
    assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [0, 2, 4, 6, 8, 10]


TIMEOUTS = {**QUICK, "worker.step_timeout_seconds": 0.1, "retry.base_seconds": 0.05}


@pytest.fixture
async def hasty(store_url: str) -> Any:
    """On each store, in real time; steps may take a tenth of a second."""
    async with World(store_url, settings=TIMEOUTS, clock=SystemClock()) as world:
        yield world


@pytest.mark.covers("S3.25", "S3.26", "S3.28", "S3.30", "S3.31", "S3.32", "S3.44")
@pytest.mark.parametrize("agent", ["waits", "hangs"])
async def test_a_step_that_takes_too_long_is_a_retryable_failure(hasty: World, agent: str) -> None:
    let_go = threading.Event()

    @hasty.app.agent("waits", retries=0)
    async def waits(ctx: Context) -> None:
        await ctx.step("slow", asyncio.sleep, 30)

    @hasty.app.agent("hangs", retries=0)
    def hangs(ctx: SyncContext) -> None:
        ctx.step("slow", let_go.wait, PATIENCE_SECONDS)

    worker = await hasty.working()
    handle = await hasty.submitted(agent)
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)

    assert failed.value.deliverable["error"]["code"] == StepTimeout.code
    (fact,) = await recorded(hasty, handle)
    assert (fact.result_type, fact.card, fact.error.code) == ("retryable_failure", None, "step_timeout")
    let_go.set()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert len(await recorded(hasty, handle)) == 1, "what came late is discarded"


@pytest.mark.covers("S3.27", "S3.28")
async def test_a_step_timeout_may_be_permanent(hasty: World) -> None:
    seen: list[str] = []

    @hasty.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> str:
        try:
            await ctx.step("slow", asyncio.sleep, 30, timeout=timedelta(seconds=0.05), on_timeout="permanent")
        except StepFailed as failed:
            seen.append(failed.code)
        if ctx.retry_count == 0:
            raise RuntimeError
        return "went on without it"

    await hasty.working()
    handle = await hasty.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == "went on without it"
    assert seen == ["step_timeout", "step_timeout"]
    (fact,) = await recorded(hasty, handle)
    assert (fact.result_type, fact.error.retryable) == ("permanent_failure", False)


@pytest.mark.covers("S3.27", "S3.29")
async def test_an_uncaught_permanent_timeout_ends_the_task(hasty: World) -> None:
    @hasty.app.agent("clerk", retries=3)
    async def run(ctx: Context) -> None:
        await ctx.step("slow", asyncio.sleep, 30, on_timeout="permanent")

    await hasty.working()
    handle = await hasty.submitted("clerk")
    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)
    task = await handle.task()
    assert (task.reason, task.dispatch_count) == ("step_timeout", 1)


@pytest.mark.covers("S3.29")
async def test_the_next_turn_tries_a_timed_out_step_again(hasty: World) -> None:
    @hasty.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> str:
        seconds, timeout = (30, None) if ctx.retry_count == 0 else (0, 60)
        await ctx.step("slow", asyncio.sleep, seconds, timeout=timeout)
        return "done"

    await hasty.working()
    handle = await hasty.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == "done"
    kinds = [fact.result_type for fact in await recorded(hasty, handle)]
    assert kinds == ["retryable_failure", "success"]


@pytest.mark.covers("S3.25")
async def test_the_most_specific_timeout_counts(hasty: World) -> None:
    @hasty.app.agent("agent", retries=0, step_timeout=1.0)
    async def by_agent(ctx: Context) -> None:
        await ctx.step("longer-than-the-setting", asyncio.sleep, 0.2)
        await ctx.step("longer-than-the-agent-says", asyncio.sleep, 1.2, timeout=60)
        await ctx.step("too-long", asyncio.sleep, 30)

    await hasty.working()
    handle = await hasty.submitted("agent")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert "'too-long' took longer than 1 s" in failed.value.deliverable["error"]["message"]
    assert [fact.result_type for fact in await recorded(hasty, handle)] == [
        "success",
        "success",
        "retryable_failure",
    ]


async def test_a_function_that_swallows_its_cancellation_has_timed_out(hasty: World) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "late"
        return "never"

    @hasty.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> Any:
        return await ctx.step("slow", stubborn)

    await hasty.working()
    handle = await hasty.submitted("clerk")
    with pytest.raises(TaskFailed):
        await handle.result(PATIENCE_SECONDS)
    assert [fact.card for fact in await recorded(hasty, handle)] == [None]


async def test_a_timeout_error_of_the_function_is_not_a_step_timeout(hasty: World) -> None:
    def gives_up() -> None:
        raise TimeoutError("the service is slow")

    @hasty.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.step("ask", gives_up)

    await hasty.working()
    handle = await hasty.submitted("clerk")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert failed.value.deliverable["error"]["code"] == "api_failure"
    assert await recorded(hasty, handle) == []


async def test_a_late_thread_keeps_the_slot_of_its_turn_and_the_turn_ends_at_once(hasty: World) -> None:
    let_go = threading.Event()

    @hasty.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.step("slow", let_go.wait, PATIENCE_SECONDS)

    worker = await hasty.working(concurrency=1)
    first = await hasty.submitted("clerk")
    with pytest.raises(TaskFailed):
        await first.result(PATIENCE_SECONDS)
    second = await hasty.submitted("clerk")
    await hasty.store.now()

    assert worker._turns.slots_taken == 1
    assert worker._turns.live_turns() == ()
    assert (await second.task()).status == "queued"
    let_go.set()
    await second.result(PATIENCE_SECONDS)


async def test_a_step_may_be_called_several_times(sqlite_world: World) -> None:
    seen = Counting()

    def fails_twice() -> str:
        seen("call")
        if len(seen.calls) < 3:
            raise ConnectionError("not yet")
        return "there"

    @sqlite_world.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> Any:
        return await ctx.step("ask", fails_twice, retry=RetryPolicy(max_retries=2, base_seconds=0.001))

    await sqlite_world.working()
    handle = await sqlite_world.submitted("clerk")
    assert await handle.result(PATIENCE_SECONDS) == "there"
    assert len(seen.calls) == 3


@pytest.mark.parametrize(
    ("error", "calls"),
    [(ValueError("again"), 2), (Fail("no"), 1), (KeyError("given up on"), 1), (StaleAttempt("x"), 1)],
)
async def test_a_step_is_called_again_only_where_that_may_help(
    sqlite_world: World, error: Exception, calls: int
) -> None:
    seen = Counting()

    def fails() -> None:
        seen("call")
        raise error

    @sqlite_world.app.agent("clerk", retries=0, give_up_on=KeyError)
    async def run(ctx: Context) -> None:
        try:
            await ctx.step("ask", fails, retry=RetryPolicy(max_retries=1, base_seconds=0.001))
        except type(error):
            await ctx.progress("seen")

    await sqlite_world.working()
    await (await sqlite_world.submitted("clerk")).result(PATIENCE_SECONDS)
    assert len(seen.calls) == calls


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"timeout": -1}, {"timeout": "5"}, {"retry": 0}, {"retry": "3"}, {"on_timeout": "x"}],
)
async def test_options_that_make_no_sense_are_refused(sqlite_world: World, options: dict[str, Any]) -> None:
    seen: list[str] = []

    @sqlite_world.app.agent("clerk", retries=0)
    async def run(ctx: Context) -> None:
        try:
            await ctx.step("one", lambda: 1, **options)
        except UsageError as refusal:
            seen.append(refusal.message)

    await sqlite_world.working()
    await (await sqlite_world.submitted("clerk")).result(PATIENCE_SECONDS)
    assert next(iter(options)) in seen[0]


@pytest.mark.covers("S3.20")
async def test_a_step_that_outlasts_the_reap_limit_is_waited_for(world: World) -> None:
    """The limit is 300 s; the step may take 1,000 s, and its worker says so before it begins."""
    go_on = asyncio.Event()

    @world.app.agent("clerk")
    async def run(ctx: Context) -> str:
        await ctx.step("short", asyncio.sleep, 0)
        await ctx.step("long", go_on.wait, timeout=1000)
        return "done"

    await world.working()
    pmo = await world.supervisor()
    handle = await world.submitted("clerk")
    await eventually(lambda: _has(world, handle, "step.started"))
    for _ in range(9):
        world.clock.advance(100)
        await eventually(lambda: _is_renewed(world))
        await pmo.run_once()
    assert (await handle.task()).status == "running"
    go_on.set()
    assert await handle.result(PATIENCE_SECONDS) == "done"
    assert [fact.step for fact in await world.facts(handle, "step.started")] == ["1:()long#1"]


async def _has(world: World, handle: AsyncHandle, kind: str) -> bool:
    return bool(await world.facts(handle, kind))


async def _is_renewed(world: World) -> bool:
    now = await world.store.now()
    return any(
        session.kind == "worker" and session.lease_until > now
        for session in await world.store.open_sessions(world.namespace)
    )


@pytest.mark.covers("S3.11", "S3.20", "S3.22", "S3.45")
async def test_a_long_step_is_shown_with_its_worker_and_start(world: World) -> None:
    go_on = asyncio.Event()

    @world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        await ctx.gather(ctx.step("wait", go_on.wait))

    worker = await world.working(name="anna")
    handle = await world.submitted("clerk")
    await world.in_status(handle, "running")
    began = world.clock.now_us()
    await eventually(lambda: bool(worker._turns.running_steps()))
    world.clock.advance(2)

    async def is_told() -> bool:
        return bool((await handle.why())["executing"])

    await eventually(is_told, "the heartbeat has told it")
    (doing,) = (await handle.why())["executing"]
    assert (doing["step"], doing["worker"]) == ("(1.0)wait#1", "anna")
    assert doing["since"].startswith("2023-11-14T22:13:20")
    assert began // SECOND == 1_700_000_000
    assert (await whole_task(world.store, world.namespace, handle.id))["executing"] == [doing]
    go_on.set()
    await handle.result(PATIENCE_SECONDS)
    assert (await handle.why())["executing"] == []


async def test_a_draft_is_kept_and_counts_as_progress(world: World) -> None:
    @world.app.agent("writer", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.draft({"chapter": 1})
        await ctx.draft({"chapter": 2})
        raise Fail("no more ideas")

    await world.working()
    handle = await world.submitted("writer")
    with pytest.raises(TaskFailed) as failed:
        await handle.result(PATIENCE_SECONDS)
    assert len(await world.facts(handle, "task.draft_kept")) == 2
    shown = await whole_task(world.store, world.namespace, handle.id)
    for deliverable in (failed.value.deliverable, shown["deliverable"]):
        assert (deliverable["kind"], deliverable["draft"]) == ("partial_deliverable", {"chapter": 2})
    assert failed.value.deliverable["retry_count"] == shown["retry_count"] == 1, (
        "the failure is counted in it"
    )


async def test_a_stale_attempt_records_nothing(world: World) -> None:
    go_on = asyncio.Event()
    seen: list[BaseException] = []

    @world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        await go_on.wait()
        try:
            await ctx.step("late", lambda: 1)
        except BaseException as error:
            seen.append(error)
            raise

    worker = await world.working()
    handle = await world.submitted("clerk")
    await world.in_status(handle, "running")
    await handle.cancel()
    go_on.set()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert all(isinstance(error, StaleAttempt | asyncio.CancelledError) for error in seen)
    assert await recorded(world, handle) == []


async def test_a_thread_learns_at_its_next_verb_that_its_turn_is_lost(world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()
    seen: list[BaseException] = []

    @world.app.agent("clerk")
    def run(ctx: SyncContext) -> None:
        inside.set()
        go_on.wait(PATIENCE_SECONDS)
        try:
            ctx.step("late", lambda: 1)
        except StaleAttempt as error:
            seen.append(error)
            raise

    worker = await world.working()
    handle = await world.submitted("clerk")
    await eventually(inside.is_set)
    worker._turns.abandon_all()
    go_on.set()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert len(seen) == 1
    assert await recorded(world, handle) == []


async def test_a_thread_waiting_in_a_verb_learns_of_the_loss_at_once(world: World) -> None:
    inside = threading.Event()
    seen: list[BaseException] = []

    async def never() -> None:
        inside.set()
        await asyncio.Event().wait()

    @world.app.agent("clerk")
    def run(ctx: SyncContext) -> None:
        try:
            ctx.step("hangs", never)
        except StaleAttempt as error:
            seen.append(error)
            raise

    worker = await world.working()
    await world.submitted("clerk")
    await eventually(inside.is_set)
    worker._turns.abandon_all()
    await eventually(lambda: worker._turns.slots_taken == 0)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_any_exception_of_a_step_ends_only_its_turn(
    sqlite_world: World, kind: str, error: BaseException
) -> None:
    async def raises() -> None:
        raise error

    @sqlite_world.app.agent("async", retries=0)
    async def run(ctx: Context) -> None:
        await ctx.gather(ctx.step("one", raises), ctx.step("two", raises))

    @sqlite_world.app.agent("sync", retries=0)
    def run_in_thread(ctx: SyncContext) -> None:
        ctx.gather(lambda: ctx.step("one", raises), lambda: ctx.step("two", raises))

    @sqlite_world.app.agent("well")
    async def well() -> str:
        return "fine"

    worker = await sqlite_world.working()
    with pytest.raises(TaskFailed):
        await (await sqlite_world.submitted(kind)).result(PATIENCE_SECONDS)
    assert await (await sqlite_world.submitted("well")).result(PATIENCE_SECONDS) == "fine"
    assert worker.failures == 0


class Traffic:
    """Counts what a store is asked and told of tasks; heartbeats and claims go on beside them."""

    def __init__(self, store: Any) -> None:
        self.commits = 0
        self.reads: list[str] = []
        commit, rows = store._commit, store._rows

        async def counted_commit(commands: Any) -> Any:
            self.commits += any(isinstance(command, TaskCommand) for command in commands)
            return await commit(commands)

        async def counted_rows(name: str, *parameters: Any) -> Any:
            self.reads.append(name)
            return await rows(name, *parameters)

        store._commit, store._rows = counted_commit, counted_rows


MINE = ("card", "cards_between", "effect", "task_by_id")
"""What a turn might ask; the worker's own loop asks for other things."""


async def test_the_cost_of_a_step_does_not_grow_with_their_number(world: World) -> None:
    traffic = Traffic(world.store)
    seen: dict[int, tuple[int, list[str]]] = {}

    @world.app.agent("clerk")
    async def run(ctx: Context) -> None:
        for number in range(1, 1001):
            before = traffic.commits
            traffic.reads.clear()
            await ctx.step("one", asyncio.sleep, 0, number)  # the same again would be a circle
            if number in (10, 1000):
                seen[number] = (traffic.commits - before, [name for name in traffic.reads if name in MINE])

    await world.working()
    handle = await world.submitted("clerk")
    await handle.result(PATIENCE_SECONDS)
    assert seen == {10: (1, []), 1000: (1, [])}
    sizes = {len(event.data) for event in await world.events(handle) if event.type == "step.recorded"}
    assert max(sizes) - min(sizes) < 20


async def test_a_thousand_records_are_read_in_one_question(world: World) -> None:
    traffic = Traffic(world.store)
    seen: list[tuple[int, list[str]]] = []

    @world.app.agent("clerk", delays=[0.01])
    async def run(ctx: Context) -> None:
        before = traffic.commits
        await ctx.gather(*(ctx.step("one", asyncio.sleep, 0) for _ in range(1000)))
        seen.append((traffic.commits - before, [name for name in traffic.reads if name.startswith("card")]))
        traffic.reads.clear()
        if ctx.retry_count == 0:
            raise RuntimeError

    await world.working()
    handle = await world.submitted("clerk")
    await eventually(lambda: _moved(world, handle))
    assert seen[1] == (0, ["cards_between"])
