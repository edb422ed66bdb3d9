"""Answers from outside: the first one counts, and a watchdog delivers those that were left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from endwell import AsyncHandle, Context, TaskFailed
from endwell.errors import NotFound, ToolFailed, ToolTimeout
from endwell.model import commands as c
from endwell.model.card import answer_id, call_id
from endwell.model.content import fingerprint
from endwell.model.moments import SECOND
from endwell.model.task import waits_of
from endwell.worker import watchdog
from endwell.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually, terminal
from tests.turn.suspended_turns import SUSPEND_SECONDS, calls, suspended


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
