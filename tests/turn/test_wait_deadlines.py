"""Every wait has its own deadline, and a tool that does not answer in time is reported to the turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from endwell import AsyncHandle, Context
from endwell.errors import ToolTimeout
from endwell.model import commands as c
from endwell.model.card import answer_id, call_id
from endwell.model.moments import SECOND
from endwell.model.task import Task, waits_of
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually, terminal
from tests.turn.suspended_turns import SUSPEND_SECONDS, calls, suspended


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
