"""A turn that waits: it holds no worker, every wait has its own deadline, and the first answer counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import Any

import pytest

from endwell import AsyncHandle, Context, TaskFailed
from endwell.errors import BadInput, NotFound, SignalTimeout, TaskEnded, ToolFailed, ToolTimeout
from endwell.model import commands as c
from endwell.model.card import answer_id, call_id
from endwell.model.content import fingerprint
from endwell.model.task import Task, waits_of
from endwell.policy.limits import SECOND
from endwell.runtime import SystemClock
from endwell.worker import watchdog
from endwell.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.support.world import TINY, World, eventually, terminal

DAYS = 86_400
SUSPEND_SECONDS = 30.0
"""The default of `worker.suspend_timeout_seconds`."""


async def suspended(world: World, handle: AsyncHandle) -> Task:
    return await world.in_status(handle, "suspended")


def calls(task: Task) -> list[str]:
    return [wait.tool_call_id for wait in waits_of(task)]


class TestSleeping:
    async def test_a_sleep_of_three_days_holds_no_worker_and_ends_on_time(self, world: World) -> None:
        began = 0

        @world.app.agent("patient", deadline=timedelta(days=5))
        async def patient(ctx: Context) -> str:
            nonlocal began
            began += 1
            await ctx.sleep(timedelta(days=3))
            return "rested"

        worker = await world.working()
        handle = await world.submitted("patient")
        task = await suspended(world, handle)

        assert (task.attempt_id, task.session_id) == (None, None)
        await eventually(lambda: worker._turns.slots_taken == 0, "the worker's slot is free")
        assert task.clock_rule == "inject_timeout"
        assert task.clock_at is not None
        assert task.clock_at - task.updated_at == 3 * DAYS * SECOND
        world.clock.advance(3 * DAYS - 60)
        await worker.watchdog.run_once()
        assert (await handle.task()).status == "suspended"
        world.clock.advance(60)
        await worker.watchdog.run_once()
        assert await handle.result(PATIENCE_SECONDS) == "rested"
        assert began == 2
        assert (await handle.task()).dispatch_count == 1, "a resume is not a delivery"

    async def test_a_sleep_of_one_second_takes_about_one_second(self, store_url: str) -> None:
        rarely = ("worker.poll_seconds", "worker.watchdog_interval_seconds", "pmo.watchdog_interval_seconds")
        settings = {**TINY, **dict.fromkeys(rarely, 600.0)}
        async with World(store_url, settings=settings, clock=SystemClock()) as world:

            @world.app.agent("napper")
            async def napper(ctx: Context) -> str:
                await ctx.sleep(0.3)
                await ctx.sleep(timedelta(seconds=0.3))
                return "awake"

            await world.working()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await (await world.submitted("napper")).result() == "awake"

    async def test_a_sleep_that_cannot_end_in_time_is_refused_at_once(self, world: World) -> None:
        refusals = []

        @world.app.agent("late", retries=3, deadline=60)
        async def late(ctx: Context) -> None:
            try:
                await ctx.sleep(61)
            except BadInput as refusal:
                refusals.append(refusal)
                raise

        await world.working()
        handle = await world.submitted("late")
        with pytest.raises(TaskFailed, match="longer deadline="):
            await handle.result(PATIENCE_SECONDS)
        assert [(r.code, r.field) for r in refusals] == [("beyond_deadline", "deadline")], "and not retried"
        assert "deadline=" in (refusals[0].hint or "")
        assert (await handle.task()).reason == "beyond_deadline"

    async def test_a_sync_agent_sleeps_without_await(self, world: World) -> None:
        @world.app.agent("thread")
        def thread(ctx: Any) -> str:
            ctx.sleep(5)
            return "rested"

        worker = await world.working()
        handle = await world.submitted("thread")
        await suspended(world, handle)
        world.clock.advance(5)
        await worker.watchdog.run_once()
        assert await handle.result(PATIENCE_SECONDS) == "rested"


class TestDeadlines:
    @pytest.mark.covers("S0.28")
    async def test_a_tool_has_the_suspend_timeout_to_answer(self, world: World) -> None:
        _, task = await self.waiting(world)

        (wait,) = waits_of(task)
        assert wait.deadline - task.updated_at == SUSPEND_SECONDS * SECOND
        assert task.wait_by == wait.deadline

    async def test_the_tasks_deadline_cuts_a_tool_timeout(self, world: World) -> None:
        _, task = await self.waiting(world, deadline=10)

        assert waits_of(task)[0].deadline == task.ends_by

    @pytest.mark.covers("S0.16", "S0.17", "S0.18", "S0.19", "S0.20", "S0.21", "S0.23", "S0.24", "S0.71")
    async def test_an_overdue_tool_is_reported_to_the_inbox_and_the_turn_resumes(self, world: World) -> None:
        told: list[ToolTimeout] = []

        @world.app.agent("asker")
        async def asker(ctx: Context) -> list[Any]:
            async def patient(name: str) -> str:
                try:
                    return str(await ctx.tool(name))
                except ToolTimeout as error:
                    told.append(error)
                    return "no answer"

            return await ctx.gather(patient("one"), patient("two"), patient("three"))

        worker = await world.working()
        handle = await world.submitted("asker")
        one, two, three = calls(await suspended(world, handle))
        await world.client.answer(two, "in time")
        world.clock.advance(SUSPEND_SECONDS - 5)
        await worker.watchdog.run_once()
        assert "wait.timed_out" not in await world.history(handle), "nothing is overdue yet"
        world.clock.advance(5)
        await worker.watchdog.run_once()

        assert await handle.result(PATIENCE_SECONDS) == ["no answer", "in time", "no answer"]
        assert {(error.code, error.error["code"]) for error in told} == {("tool_timeout", "tool_timeout")}
        rows = await world.sql(
            "SELECT correlation_id, payload, status, card_id FROM agent_inbox"
            " WHERE namespace = ? AND message_type = 'timeout'",
            world.namespace,
        )
        assert sorted(row[0] for row in rows) == [one, three], "one report for each that is overdue"
        for call, payload, status, card in rows:
            report = json.loads(payload)
            assert (report["status"], report["error"]["code"]) == ("timeout", "tool_timeout")
            assert (status, card) == ("consumed", answer_id(call, "timeout")), "by the path of results"
        events = {event.type: event for event in await world.events(handle)}
        assert events["wait.timed_out"].actor == worker.name
        assert terminal(await world.history(handle)) == ["task.succeeded"]
        holder = (await world.facts(handle, "task.claimed"))[-1]
        assert events["task.succeeded"].attempt_id == holder.attempt_id, "who holds the turn ends it"

    @pytest.mark.covers("S0.22")
    async def test_the_agent_is_woken_after_the_report_and_only_then(self, world: World) -> None:
        @world.app.agent("asker")
        async def asker(ctx: Context) -> None:
            await ctx.tool("oracle")

        worker = await world.started_worker()
        handle = await world.submitted("asker")
        await world.brought_to(worker, handle, "suspended")
        rung: list[str] = []
        world.node.bell.subscribe(lambda topics: rung.extend(topics))
        world.clock.advance(SUSPEND_SECONDS)
        inject = c.InjectTimeout(command_id="i", namespace=world.namespace, task_id=handle.id)
        await world.store._commit((inject,))  # as far as the report, and no further
        wakeup = f"work:{world.namespace}:asker"

        (message,) = await world.store.pending_messages(world.namespace, handle.id)
        assert message.message_type == "timeout"
        assert wakeup not in rung
        await worker.watchdog.run_once()
        await eventually(lambda: wakeup in rung, "the agent is woken")
        assert (await handle.task()).status == "queued"

    @pytest.mark.covers("S0.25", "S0.26")
    async def test_siblings_keep_their_own_deadlines(self, world: World) -> None:
        @world.app.agent("both")
        async def both(ctx: Context) -> list[Any]:
            async def quick() -> str:
                try:
                    return str(await ctx.tool("quick"))
                except ToolTimeout:
                    return "no answer"

            return await ctx.gather(quick(), ctx.tool("slow", timeout=600))

        worker = await world.working()
        handle = await world.submitted("both")
        before = await suspended(world, handle)
        quick, slow = waits_of(before)
        assert (before.wait_by, slow.deadline - quick.deadline) == (quick.deadline, 570 * SECOND)
        world.clock.advance(SUSPEND_SECONDS)
        await worker.watchdog.run_once()

        task = await handle.task()
        assert task.status == "suspended"
        assert [wait.wait_status for wait in waits_of(task)] == ["expired", "waiting"]
        assert task.wait_by == slow.deadline, "the first deadline is done with; the other one counts now"
        await world.client.answer(slow.tool_call_id, "at last")
        assert await handle.result(PATIENCE_SECONDS) == ["no answer", "at last"]

    @pytest.mark.covers("S0.27", "T2")
    async def test_a_tool_without_its_card_is_skipped_and_the_suspend_cap_still_ends_the_turn(
        self, world: World
    ) -> None:
        @world.app.agent("both", retries=0)
        async def both(ctx: Context) -> list[Any]:
            return await ctx.gather(ctx.tool("lost"), ctx.tool("found"))

        worker = await world.working()
        handle = await world.submitted("both")
        lost, found = calls(await suspended(world, handle))
        await world.sql("DELETE FROM cards WHERE namespace = ? AND id = ?", world.namespace, call_id(lost))
        world.clock.advance(SUSPEND_SECONDS)
        await worker.watchdog.run_once()

        task = await handle.task()
        (said,) = await world.facts(handle, "wait.timed_out")
        assert (said.skipped, said.reported) == ((lost,), (found,))
        assert [wait.wait_status for wait in waits_of(task)] == ["waiting", "expired"]
        assert (task.status, task.wait_by, task.clock_rule) == ("suspended", None, "suspend_cap")
        world.clock.advance(SUSPEND_SECONDS)
        await worker.watchdog.run_once()
        assert (await handle.task()).status == "suspended"
        await (await world.supervisor()).run_once()
        task = await handle.task()
        assert (task.status, task.reason) == ("timeout", "retries_exhausted")
        assert terminal(await world.history(handle)) == ["task.timeout"]

    async def waiting(self, world: World, **options: Any) -> tuple[AsyncHandle, Task]:
        @world.app.agent("waiter", **options)
        async def waiter(ctx: Context) -> Any:
            return await ctx.tool("oracle", {"q": 1})

        await world.working()
        handle = await world.submitted("waiter")
        return handle, await suspended(world, handle)


class TestAnswers:
    async def waiting(self, world: World) -> tuple[AsyncHandle, str, Worker]:
        @world.app.agent("waiter", retries=0)
        async def waiter(ctx: Context) -> Any:
            return await ctx.tool("oracle", {"q": 1})

        worker = await world.working()
        handle = await world.submitted("waiter")
        (call,) = calls(await suspended(world, handle))
        return handle, call, worker

    async def test_an_answer_from_outside_is_the_result(self, world: World) -> None:
        handle, call, _ = await self.waiting(world)
        asked = await world.store.card(world.namespace, call_id(call))
        assert asked.content == b'{"arguments":{"q":1},"tool_name":"oracle"}'

        assert (await world.client.answer(call, {"a": [1, 2]}))["outcome"] == "applied"
        assert await handle.result(PATIENCE_SECONDS) == {"a": [1, 2]}

    async def test_a_failure_from_outside_is_raised(self, world: World) -> None:
        handle, call, _ = await self.waiting(world)

        await world.client.fail_call(call, {"code": "no_funds", "message": "the till is empty"})
        with pytest.raises(TaskFailed, match="the till is empty"):
            await handle.result(PATIENCE_SECONDS)
        task = await handle.task()
        assert json.loads(task.error or "")["code"] == "tool_failed"

    @pytest.mark.covers("T6")
    async def test_the_first_of_result_and_timeout_counts_and_the_other_is_kept(self, world: World) -> None:
        handle, call, worker = await self.waiting(world)
        await world.client.answer(call, "first")
        world.clock.advance(SUSPEND_SECONDS)
        await worker.watchdog.run_once()
        assert await handle.result(PATIENCE_SECONDS) == "first"
        assert (await world.client.answer(call, "second"))["outcome"] == "late"
        assert "wait.timed_out" not in await world.history(handle)

    @pytest.mark.covers("T6")
    async def test_a_result_after_the_timeout_moves_nothing_and_is_kept(self, world: World) -> None:
        @world.app.agent("waiter")
        async def waiter(ctx: Context) -> Any:
            try:
                return await ctx.tool("oracle")
            except ToolTimeout:
                await ctx.wait_signal("go")
                return "timed out"

        worker = await world.working()
        handle = await world.submitted("waiter")
        (call,) = calls(await suspended(world, handle))
        world.clock.advance(SUSPEND_SECONDS)
        await worker.watchdog.run_once()
        await eventually(lambda: _waits_for(handle, "signal"), "it waits for the signal")

        assert (await world.client.answer(call, "too late"))["outcome"] == "late"
        await worker.watchdog.run_once()
        (row,) = await world.sql(
            "SELECT status, watchdog_error FROM agent_inbox WHERE namespace = ? AND correlation_id = ?"
            " AND message_type = 'tool_result'",
            world.namespace,
            call,
        )
        assert row == ("consumed", "late")
        await world.client.signal(handle.id, "go")
        assert await handle.result(PATIENCE_SECONDS) == "timed out"

    async def test_an_answer_that_comes_before_its_call_is_found(self, world: World) -> None:
        @world.app.agent("slow-asker")
        async def slow_asker(ctx: Context) -> Any:
            await asked.wait()
            return await ctx.tool("oracle")

        asked = asyncio.Event()
        await world.working()
        handle = await world.submitted("slow-asker")
        await world.in_status(handle, "running")
        early = await world.client.answer(f"{handle.id}.s.1:()oracle#1", 42)
        asked.set()

        assert early["outcome"] == "kept"
        assert await handle.result(PATIENCE_SECONDS) == 42

    async def test_an_answer_to_nothing_is_refused(self, world: World) -> None:
        await self.waiting(world)

        for nothing in ("unknown.s.1:()x#1", "nonsense"):
            with pytest.raises(NotFound):
                await world.client.answer(nothing, 1)

    async def test_a_message_that_races_the_end_of_its_turn_is_kept(self, world: World) -> None:
        handle, call, _ = await self.waiting(world)
        await handle.cancel()

        assert (await world.client.answer(call, 1))["outcome"] == "late"
        rows = await world.sql(
            "SELECT status, watchdog_error FROM agent_inbox WHERE namespace = ? AND correlation_id = ?",
            world.namespace,
            call,
        )
        assert rows == [("consumed", "late")]


async def _waits_for(handle: AsyncHandle, kind: str) -> bool:
    task = await handle.task()
    return task.status == "suspended" and waits_of(task)[-1].kind == kind


class TestSignals:
    async def test_a_signal_resumes_the_turn_that_waits_for_it(self, world: World) -> None:
        @world.app.agent("listener")
        async def listener(ctx: Context) -> list[Any]:
            return [await ctx.wait_signal("go", result=int), await ctx.wait_signal("go", result=int)]

        await world.working()
        handle = await world.submitted("listener")
        await suspended(world, handle)
        await world.client.signal(handle.id, "other", 0)
        assert (await handle.task()).status == "suspended"
        await world.client.signal(handle.id, "go", 1)
        await world.client.signal(handle.id, "go", 2)
        assert await handle.result(PATIENCE_SECONDS) == [1, 2]

    async def test_a_signal_that_comes_early_is_kept(self, world: World) -> None:
        @world.app.agent("listener")
        async def listener(ctx: Context) -> Any:
            return await ctx.wait_signal("go")

        await world.registered("listener")
        handle = await world.submitted("listener")
        await world.client.signal(handle.id, "go", {"now": True})
        await world.working()
        assert await handle.result(PATIENCE_SECONDS) == {"now": True}
        with pytest.raises(TaskEnded):
            await world.client.signal(handle.id, "go", 2)

    async def test_a_missing_signal_raises_signal_timeout(self, world: World) -> None:
        @world.app.agent("listener")
        async def listener(ctx: Context) -> str:
            try:
                await ctx.wait_signal("go", within=60)
            except SignalTimeout:
                return "in vain"
            return "heard"

        worker = await world.working()
        handle = await world.submitted("listener")
        await suspended(world, handle)
        world.clock.advance(60)
        await worker.watchdog.run_once()
        assert await handle.result(PATIENCE_SECONDS) == "in vain"


class TestTheWatchdog:
    @pytest.mark.covers("S0.31", "S0.32", "S0.33", "S0.35")
    async def test_another_worker_delivers_an_answer_that_was_left_in_the_ledger(self, world: World) -> None:
        @world.app.agent("asker")
        async def asker(ctx: Context) -> str:
            try:
                return str(await ctx.tool("oracle"))
            except ToolTimeout:
                return "no answer"

        worker = await world.started_worker()
        handle = await world.submitted("asker")
        await world.brought_to(worker, handle, "suspended")
        world.clock.advance(SUSPEND_SECONDS)
        await self.reported_and_not_handed_on(world, handle)
        # another worker has taken the report, and died
        await world.sql(
            "UPDATE turn_resume_ledger SET status = 'processing', lease_owner = 'gone', lease_expires_at = ?"
            " WHERE namespace = ?",
            await world.store.now() + 5 * SECOND,
            world.namespace,
        )
        await worker.watchdog.run_once()
        assert (await handle.task()).status == "suspended", "it may still be at it"
        world.clock.advance(5)
        await worker.watchdog.run_once()

        await world.brought_to(worker, handle, "succeeded")
        assert await handle.result() == "no answer"
        (row,) = await world.sql(
            "SELECT status, attempt_count FROM turn_resume_ledger WHERE namespace = ?",
            world.namespace,
        )
        assert row == ("applied", 1)

    @pytest.mark.covers("S0.34")
    async def test_an_answer_without_a_message_is_found_by_its_card(self, world: World) -> None:
        handle, call, worker = await TestAnswers().waiting(world)
        card = (answer_id(call, "x"), handle.id, b'{"deep":[1]}', fingerprint(b'{"deep":[1]}'))
        await world.sql(
            "INSERT INTO cards (namespace, id, task_id, kind, content, hash, created_at)"
            " VALUES (?, ?, ?, 'tool.result', ?, ?, 0)",
            world.namespace,
            *card,
        )
        await worker.watchdog.run_once()  # long before the deadline of the call

        assert await handle.result(PATIENCE_SECONDS) == {"deep": [1]}

    @pytest.mark.covers("S0.24")
    async def test_many_ticks_by_many_watchdogs_report_once_and_end_nothing(self, world: World) -> None:
        @world.app.agent("waiter", deadline=3600)
        async def waiter(ctx: Context) -> Any:
            try:
                return await ctx.tool("oracle")
            except ToolFailed:
                return await ctx.wait_signal("never")

        one = await world.working()
        two = await world.started_worker(await world.another_node())
        handle = await world.submitted("waiter")
        await suspended(world, handle)
        world.clock.advance(SUSPEND_SECONDS)
        await asyncio.gather(*(each.watchdog.run_once() for each in (one, two, one, two)))
        await eventually(lambda: _waits_for(handle, "signal"), "it waits for the signal")
        world.clock.advance(2 * 3600)
        await asyncio.gather(*(each.watchdog.run_once() for each in (one, two, one, two)))

        history = await world.history(handle)
        assert history.count("wait.timed_out") == 2
        assert terminal(history) == [], "ending is the PMO's"

    async def test_messages_to_tasks_that_have_ended_are_skipped(self, world: World) -> None:
        @world.app.agent("deaf")
        async def deaf(ctx: Context) -> None:
            await released.wait()

        released = asyncio.Event()
        worker = await world.working()
        handle = await world.submitted("deaf")
        await world.in_status(handle, "running")
        await world.client.signal(handle.id, "unheard", 1)
        released.set()
        await handle.result(PATIENCE_SECONDS)
        await worker.watchdog.run_once()

        rows = await world.sql(
            "SELECT status, watchdog_error FROM agent_inbox WHERE namespace = ?", world.namespace
        )
        assert rows == [("skipped", "task_ended")]

    async def test_messages_that_cannot_be_consumed_yet_delay_no_others(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watchdog, "PAGE", 1)

        @world.app.agent("listener")
        async def listener(ctx: Context) -> Any:
            return await ctx.wait_signal("go")

        worker = await world.started_worker()
        waiting, over = [await world.submitted("listener") for _ in range(2)]
        await world.brought_to(worker, waiting, "suspended")
        await world.brought_to(worker, over, "suspended")
        await world.client.signal(waiting.id, "later", 1)
        await world.client.signal(over.id, "later", 1)
        await over.cancel()
        await worker.watchdog.run_once()

        assert await world.store.pending_messages(world.namespace, over.id) == []
        assert len(await world.store.pending_messages(world.namespace, waiting.id)) == 1

    async def reported_and_not_handed_on(self, world: World, handle: AsyncHandle) -> None:
        """The report is in the inbox; the worker that put it there died before the next commit."""
        inject = c.InjectTimeout(command_id="i", namespace=world.namespace, task_id=handle.id, actor="gone")
        await world.store._commit((inject,))
        assert (await handle.task()).status == "suspended"


async def test_messages_that_come_faster_than_turns_finish_do_not_keep_a_task_from_ending(
    quick_world: World,
) -> None:
    """E6: each wait takes one of them, the rest is kept; nothing goes round for their sake."""
    world, waits, flood = quick_world, 5, 100

    @world.app.agent("listener")
    async def listener(ctx: Context) -> list[int]:
        return [await ctx.wait_signal("go") for _ in range(waits)]

    await world.working()
    handle = await world.submitted("listener")
    with contextlib.suppress(TaskEnded):  # it need not hear all of them
        for number in range(flood):
            await world.client.signal(handle.id, "go", number)
    assert await handle.result(PATIENCE_SECONDS) == list(range(waits))
    history = await world.history(handle)
    assert history.count("task.suspended") <= waits
    assert history.count("task.claimed") <= waits + 1
    assert len(terminal(history)) == 1
