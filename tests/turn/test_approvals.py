"""Approvals: asked before a task starts or inside its turn, bound to what is shown, decided once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from endwell import AsyncHandle, Context, TaskFailed, TaskTimedOut
from endwell.errors import ApprovalRejected, BadInput, Refused, TaskEnded, ToolFailed, WrongStatus
from endwell.model.moments import SECOND
from endwell.model.task import Task
from endwell.operate import approvals
from endwell.policy.approval import Approval
from tests.patience import PATIENCE_SECONDS
from tests.support.world import World, eventually, terminal


async def open_approvals(world: World) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await approvals.page(world.store, world.namespace))["items"]
    return items


async def the_open_one(world: World) -> str:
    async def is_asked() -> bool:
        return len(await open_approvals(world)) == 1

    await eventually(is_asked, "people are asked")
    return str((await open_approvals(world))[0]["id"])


NO_NAMES = ("", " ", "ann,bob", "ann\nbob", "ann\u200b", "\u3164", "x" * 201)


class TestInsideATurn:
    async def asked(self, world: World, **options: Any) -> tuple[AsyncHandle, str]:
        @world.app.agent("buyer")
        async def buyer(ctx: Context) -> list[str]:
            return list((await ctx.approve("Buy it?", show={"price": 5}, **options)).by)

        self.worker = await world.working()
        handle = await world.submitted("buyer")
        await world.in_status(handle, "suspended")
        return handle, await the_open_one(world)

    @pytest.mark.covers("S4.54", "S4.55")
    async def test_the_turn_resumes_when_a_person_agrees(self, world: World) -> None:
        handle, approval = await self.asked(world)
        shown = await approvals.read_approval(world.store, world.namespace, approval)
        assert (shown["question"], shown["shown"], shown["status"]) == ("Buy it?", {"price": 5}, "open")

        decided = await world.client.approve(approval, by="ada", shown_hash=shown["shown_hash"])
        assert (decided["status"], decided["decided_by"]) == ("approved", "ada")
        assert await handle.result(PATIENCE_SECONDS) == ["ada"]
        history = await world.history(handle)
        assert history.index("approval.requested") < history.index("approval.approved")

    async def test_two_approvals_at_once_are_decided_separately(self, sqlite_world: World) -> None:
        world = sqlite_world

        async def voice(ctx: Context, what: str) -> str:
            try:
                return f"{what}: {', '.join((await ctx.approve(f'Buy {what}?', show=what)).by)}"
            except ApprovalRejected:
                return f"{what}: no"

        @world.app.agent("buyer")
        async def buyer(ctx: Context) -> list[str]:
            return list(await ctx.gather(voice(ctx, "bread"), voice(ctx, "butter")))

        await world.working()
        handle = await world.submitted("buyer")
        await world.in_status(handle, "suspended")
        asked = {item["question"]: item["id"] for item in await open_approvals(world)}
        await world.client.reject(asked["Buy butter?"], by="eve")
        await world.client.approve(asked["Buy bread?"], by="ada")
        assert await handle.result(PATIENCE_SECONDS) == ["bread: ada", "butter: no"]

    @pytest.mark.covers("S4.56")
    async def test_a_person_who_declines_ends_the_task_and_leaves_no_dead_letter(self, world: World) -> None:
        handle, approval = await self.asked(world)
        await world.client.reject(approval, by="ada")
        with pytest.raises(TaskFailed, match="ada declined: Buy it"):
            await handle.result(PATIENCE_SECONDS)
        task = await handle.task()
        assert (task.status, task.reason, task.dead_letter) == ("failed", "approval_rejected", None)
        assert "approval.rejected" in await world.history(handle)

    async def test_an_agent_may_continue_after_a_rejection(self, world: World) -> None:
        @world.app.agent("buyer")
        async def buyer(ctx: Context) -> str:
            try:
                await ctx.approve("Buy it?")
            except ApprovalRejected:
                return "kept the money"
            return "bought"

        await world.working()
        handle = await world.submitted("buyer")
        await world.client.reject(await the_open_one(world))
        assert await handle.result(PATIENCE_SECONDS) == "kept the money"

    async def test_an_expired_approval_is_not_a_rejection(self, world: World) -> None:
        handle, _ = await self.asked(world, within=timedelta(hours=1))
        world.clock.advance(3600)
        await self.worker.watchdog.run_once()
        with pytest.raises(TaskTimedOut, match="expired without a decision"):
            await handle.result(PATIENCE_SECONDS)
        task = await handle.task()
        assert (task.status, task.reason, task.dead_letter) == ("timeout", "approval_expired", None)
        history = await world.history(handle)
        assert "approval.expired" in history
        assert "approval.rejected" not in history
        (row,) = (await approvals.page(world.store, world.namespace, everything=True))["items"]
        assert row["status"] == "expired"

    async def test_an_approval_that_cannot_end_in_time_is_refused_at_once(self, world: World) -> None:
        @world.app.agent("buyer", deadline=60)
        async def buyer(ctx: Context) -> str:
            with pytest.raises(BadInput) as refusal:
                await ctx.approve("Buy it?", within=61)
            return f"{refusal.value.code}: {refusal.value.hint}"

        await world.working()
        answer = await (await world.submitted("buyer")).result(PATIENCE_SECONDS)
        assert answer.startswith("beyond_deadline")
        assert "deadline=" in answer

    async def test_an_approval_without_a_timeout_leaves_the_task_some_time(self, world: World) -> None:
        handle, _ = await self.asked(world)
        task = await handle.task()
        assert task.wait_by is not None
        assert task.wait_by - task.updated_at == 4 * 3600 * SECOND, "approval.within_seconds"

    async def test_an_approval_never_outlasts_its_task(self, world: World) -> None:
        @world.app.agent("hasty", deadline=100)
        async def hasty(ctx: Context) -> None:
            await ctx.approve("Now?")

        await world.working()
        task = await world.in_status(await world.submitted("hasty"), "suspended")
        assert task.wait_by is not None
        assert task.ends_by - 11 * SECOND < task.wait_by < task.ends_by

    async def test_one_person_counts_once_however_the_name_is_written(self, sqlite_world: World) -> None:
        handle, approval = await self.asked(sqlite_world, quorum=2)
        client = sqlite_world.client
        assert (await client.approve(approval, by="Ann"))["votes"] == ["Ann"]
        for spelling in ("Ann", "ann", " ann ", "\uff21nn"):
            with pytest.raises(WrongStatus) as refused:
                await client.approve(approval, by=spelling)
            assert refused.value.code == "already_voted"
        for name in NO_NAMES:
            for decide in (client.approve, client.reject):
                with pytest.raises(BadInput) as bad:
                    await decide(approval, by=name)
                assert bad.value.code == "bad_name", "an empty name is not the submitter's"
        assert (await client.approve(approval, by="bob"))["decided_by"] == "Ann, bob"
        assert await handle.result(PATIENCE_SECONDS) == ["Ann", "bob"]

    @pytest.mark.parametrize(
        "options", [{"by": ("ann", "Ann"), "quorum": 2}, {"quorum": 10**30}, {"by": ("ann\u200b",)}], ids=str
    )
    async def test_a_quorum_that_cannot_be_reached_is_refused(
        self, sqlite_world: World, options: dict[str, Any]
    ) -> None:
        @sqlite_world.app.agent("buyer", retries=0)
        async def buyer(ctx: Context) -> None:
            await ctx.approve("Buy it?", **options)

        await sqlite_world.working()
        handle = await sqlite_world.submitted("buyer")
        assert (await sqlite_world.in_status(handle, "failed")).reason == "bad_approval"

    async def test_only_named_people_may_decide_and_the_quorum_must_agree(self, world: World) -> None:
        handle, approval = await self.asked(world, by=("ada", "bob", "cy"), quorum=2)
        with pytest.raises(Refused) as refusal:
            await world.client.approve(approval, by="mallory")
        assert refusal.value.code == "not_an_approver"
        first = await world.client.approve(approval, by="bob")
        assert (first["status"], first["votes"]) == ("open", ["bob"])
        with pytest.raises(WrongStatus):
            await world.client.approve(approval, by="bob")
        await world.client.approve(approval, by="ada")
        assert await handle.result(PATIENCE_SECONDS) == ["bob", "ada"]

    @pytest.mark.covers("T20")
    async def test_an_approval_is_decided_once(self, world: World) -> None:
        handle, approval = await self.asked(world)
        await world.client.approve(approval, by="ada")
        for decide in (world.client.approve, world.client.reject):
            with pytest.raises(Refused):
                await decide(approval, by="bob")
        await handle.result(PATIENCE_SECONDS)
        with pytest.raises(TaskEnded):
            await world.client.reject(approval, by="bob")
        history = await world.history(handle)
        assert history.count("approval.approved") == 1
        assert "approval.rejected" not in history

    async def test_changed_content_must_be_approved_again(self, world: World) -> None:
        price = 5

        @world.app.agent("buyer")
        async def buyer(ctx: Context) -> int:
            shown = price
            await ctx.approve("Buy it?", show={"price": shown})
            return shown

        await world.working()
        handle = await world.submitted("buyer")
        first = await the_open_one(world)
        old = await approvals.read_approval(world.store, world.namespace, first)
        price = 500
        await world.client.approve(first, by="ada")

        async def is_asked_again() -> bool:
            return [one["id"] for one in await open_approvals(world)] not in ([first], [])

        await eventually(is_asked_again, "the new price is asked for")
        second = await the_open_one(world)
        assert (await approvals.read_approval(world.store, world.namespace, second))["shown"] == {
            "price": 500
        }
        with pytest.raises(Refused) as refusal:
            await world.client.approve(second, by="ada", shown_hash=old["shown_hash"])
        assert refusal.value.code == "approval_changed"
        await world.client.approve(second, by="ada")
        assert await handle.result(PATIENCE_SECONDS) == 500

    async def test_an_open_approval_ends_with_its_task(self, world: World) -> None:
        handle, approval = await self.asked(world)
        await handle.cancel()
        assert await open_approvals(world) == []
        assert (await approvals.read_approval(world.store, world.namespace, approval))["status"] == "void"


class TestBeforeTheStart:
    """A guard: by rule on the agent, the tool, or its risk."""

    async def guarded(self, world: World, approval: Any = True, **options: Any) -> Task:
        @world.app.agent("payer", approval=approval, **options)
        async def payer(amount: int) -> int:
            return amount

        self.worker = await world.working()
        self.handle = await world.submitted("payer", 5)
        return await self.handle.task()

    @pytest.mark.covers("S4.11", "S4.54", "S4.55")
    async def test_the_task_starts_when_a_person_agrees(self, world: World) -> None:
        task = await self.guarded(world, Approval(by=("ada",), within=600))
        assert (task.status, task.started_at) == ("waiting_approval", None)
        assert task.expire_at == task.created_at + 600 * SECOND
        shown = await approvals.read_approval(world.store, world.namespace, self.handle.id)
        assert (shown["shown"], shown["by"]) == (5, ["ada"])
        assert shown["question"] == "May payer start with this?"
        with pytest.raises(Refused):
            await world.client.approve(self.handle.id, by="mallory")
        await world.client.approve(self.handle.id, by="ada")
        assert await self.handle.result(PATIENCE_SECONDS) == 5
        history = await world.history(self.handle)
        assert history[:3] == ["task.created", "approval.requested", "approval.approved"]

    @pytest.mark.covers("S4.56", "T20")
    async def test_a_rejected_task_never_starts(self, world: World) -> None:
        await self.guarded(world)
        await world.client.reject(self.handle.id, by="ada")
        task = await self.handle.task()
        assert (task.status, task.reason, task.started_at) == ("failed", "approval_rejected", None)
        with pytest.raises(TaskEnded):
            await world.client.approve(self.handle.id, by="ada")
        history = await world.history(self.handle)
        assert history == ["task.created", "approval.requested", "approval.rejected", "task.failed"]

    @pytest.mark.covers("T20")
    async def test_an_expired_approval_cannot_be_approved(self, world: World) -> None:
        await self.guarded(world, Approval(within=600))
        pmo = await world.supervisor()
        world.clock.advance(600)
        await pmo.run_once()
        task = await self.handle.task()
        assert (task.status, task.reason) == ("timeout", "approval_expired")
        with pytest.raises(TaskEnded):
            await world.client.approve(self.handle.id, by="ada")
        assert terminal(await world.history(self.handle)) == ["task.timeout"]

    @pytest.mark.covers("S4.11")
    async def test_a_grave_risk_asks_for_an_approval(self, world: World) -> None:
        task = await self.guarded(world, None, risk="money_movement")
        assert task.status == "waiting_approval"

    async def test_a_small_risk_does_not_ask_for_an_approval(self, world: World) -> None:
        await self.guarded(world, None, risk="write_draft")
        assert await self.handle.result(PATIENCE_SECONDS) == 5

    @pytest.mark.covers("S4.11")
    async def test_a_tool_that_needs_approval_is_waited_for_as_long_as_that_takes(self, world: World) -> None:
        @world.app.tool("transfer", risk="money_movement")
        async def transfer(amount: int) -> str:
            return f"sent {amount}"

        @world.app.agent("payer")
        async def payer(ctx: Context, amount: int) -> str:
            try:
                return str(await ctx.tool("transfer", amount))
            except ToolFailed as error:
                return str(error.error["code"])

        await world.working()
        yes, no = [await world.submitted("payer", amount) for amount in (5, 6)]
        tasks = [await world.in_status(handle, "suspended") for handle in (yes, no)]
        assert all(
            task.wait_by - task.updated_at == (4 * 3600 + 30) * SECOND for task in tasks if task.wait_by
        )
        asked = {one["task_id"]: one["id"] for one in await open_approvals(world)}
        by_parent = {
            handle.id: asked[(await world.store.children(world.namespace, handle.id))[0].id]
            for handle in (yes, no)
        }
        await world.client.approve(by_parent[yes.id], by="ada")
        await world.client.reject(by_parent[no.id], by="ada")
        assert await yes.result(PATIENCE_SECONDS) == "sent 5"
        assert await no.result(PATIENCE_SECONDS) == "approval_rejected"
