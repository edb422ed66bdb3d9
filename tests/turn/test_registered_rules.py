"""Approval rules as workers register them: the door applies them to every submission and every replay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from endwell import AsyncHandle, Context
from endwell.app import Node
from endwell.errors import WrongStatus
from endwell.model import commands as c
from endwell.operate import approvals
from endwell.operate.dead_letters import DeadLetters, Replacement
from endwell.operate.repair import Edit
from endwell.policy.approval import Approval
from endwell.worker.worker import Worker
from tests.support.world import MovableApp, World, eventually


class Site:
    """Two copies of an installation's code on one store: each may know another rule."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._closing: list[Callable[[], Any]] = []

    def copy(
        self, approval: Any = None, *, settings: dict[str, object] | None = None, **options: Any
    ) -> MovableApp:
        """Code with an agent `payer` that fails for every amount but 7, and a caller of it."""
        values = {"worker.poll_seconds": 0.05, "worker.heartbeat_seconds": 0.05, **(settings or {})}
        app = MovableApp(
            self.world.app.url, namespace=self.world.namespace, clock=self.world.clock, settings=values
        )

        @app.agent("payer", approval=approval, retries=0, **options)
        async def payer(amount: int) -> int:
            if amount != 7:
                raise ValueError("the bank is closed")
            return amount

        @app.tool("transfer", approval=approval, retries=0)
        async def transfer(amount: int) -> int:
            return amount

        @app.agent("boss", retries=0)
        async def boss(ctx: Context, way: str) -> Any:
            return await (ctx.call("payer", 7) if way == "call" else ctx.tool("transfer", 7))

        return app

    async def node(self, app: MovableApp) -> Node:
        node = await app.connect().__aenter__()
        self._closing.append(node.__aexit__)
        return node

    async def worker(self, app: MovableApp, **options: Any) -> Worker:
        """A worker that has registered and works only when `run_once` is called."""
        worker = (await self.node(app)).worker(**options)
        await worker.start()
        self._closing.append(worker.close)
        return worker

    def command(self) -> dict[str, Any]:
        """What each command says."""
        return {"command_id": self.world.app.runtime.ids.new(), "namespace": self.world.namespace}

    def claim(self, task_id: str, worker: Worker) -> c.Claim:
        """A claim that names its task, as a stream brings it."""
        about = {**self.command(), "task_id": task_id, "attempt_id": "a1", "session_id": worker.session_id}
        return c.Claim(**about)

    async def close(self) -> None:
        for close in reversed(self._closing):
            await close()

    async def failed(self, node: Node, worker: Worker, amount: int = 1, *, by: str = "ada") -> AsyncHandle:
        """A task that was agreed to, and failed."""
        handle = await node.client.submit("payer", amount)
        assert (await handle.task()).status == "waiting_approval"
        await node.client.approve(handle.id, by=by)
        await self.world.brought_to(worker, handle, "failed")
        return handle

    def letters(self, node: Node) -> DeadLetters:
        return DeadLetters(node.client.actions)

    async def asked(self, task_id: str) -> dict[str, Any]:
        return await approvals.read_approval(self.world.store, self.world.namespace, task_id)


@pytest.fixture
async def site(world: World) -> AsyncIterator[Site]:
    """On each store."""
    site = Site(world)
    yield site
    await site.close()


def changed(amount: int) -> Replacement:
    return Replacement(payload=amount, is_given=True)


class TestReplays:
    async def test_a_changed_payload_is_asked_again(self, site: Site) -> None:
        app = site.copy(Approval(by=("ada",)))
        worker, node = await site.worker(app), await site.node(app)
        old = await site.failed(node, worker)
        new = await site.letters(node).replay(old.id, changed(1_000_000))
        assert new.status == "waiting_approval"
        asked = await site.asked(new.id)
        assert (asked["shown"], asked["by"], asked["status"]) == (1_000_000, ["ada"], "open")

    async def test_a_payload_with_one_changed_value_is_asked_again(self, site: Site) -> None:
        app = site.copy(Approval(by=("ada",)))

        @app.agent("buyer", approval=Approval(by=("ada",)), retries=0)
        async def buyer(order: dict[str, int]) -> int:
            raise ValueError("sold out")

        worker, node = await site.worker(app), await site.node(app)
        handle = await node.client.submit("buyer", {"amount": 1})
        await node.client.approve(handle.id, by="ada")
        await site.world.brought_to(worker, handle, "failed")
        new = await site.letters(node).replay(handle.id, Replacement(edits=(Edit(("amount",), 1_000_000),)))
        assert new.status == "waiting_approval"
        assert (await site.asked(new.id))["shown"] == {"amount": 1_000_000}

    async def test_an_approved_payload_is_not_asked_again_and_the_log_names_who_approved(
        self, site: Site
    ) -> None:
        app = site.copy(Approval(by=("ada",)))
        worker, node = await site.worker(app), await site.node(app)
        old = await site.failed(node, worker)
        new = await site.letters(node).replay(old.id)
        assert new.status == "queued"
        asked = await site.asked(new.id)
        assert (asked["status"], asked["decided_by"]) == ("approved", "ada")
        handle = await node.client.task(new.id)
        (approved,) = await site.world.facts(handle, "approval.approved")
        assert (approved.by, approved.carried_from) == ("ada", old.id)
        await site.world.brought_to(worker, handle, "failed")
        third = await node.client.actions.retry(new.id)
        assert third.status == "queued", "it carries on along a chain of replays"
        fourth = await node.client.actions.replay(
            (await site.world.brought_to(worker, await node.client.task(third.id), "failed")).id, b"2"
        )
        assert fourth.status == "waiting_approval"

    async def test_under_another_rule_it_is_asked_again(self, site: Site) -> None:
        first = site.copy(Approval(by=("ada",)))
        worker, node = await site.worker(first), await site.node(first)
        old = await site.failed(node, worker)
        await worker.close()
        await site.worker(site.copy(Approval(by=("ada", "bob"), quorum=2)))
        new = await site.letters(node).replay(old.id)
        assert new.status == "waiting_approval"
        asked = await site.asked(new.id)
        assert (asked["by"], asked["quorum"], asked["votes"]) == (["ada", "bob"], 2, [])

    async def test_a_rule_that_came_later_counts_for_replays(self, site: Site) -> None:
        free = site.copy()
        worker, node = await site.worker(free), await site.node(free)
        handle = await node.client.submit("payer", 1)
        await site.world.brought_to(worker, handle, "failed")
        await worker.close()
        await site.worker(site.copy(Approval(by=("ada",))))
        assert (await node.client.actions.retry(handle.id)).status == "waiting_approval"

    async def test_a_rejected_payload_is_asked_again_although_the_rule_is_gone(self, site: Site) -> None:
        app = site.copy(Approval(by=("ada",)))
        worker, node = await site.worker(app), await site.node(app)
        handle = await node.client.submit("payer", 7)
        await node.client.reject(handle.id, by="ada")
        await worker.close()
        await site.worker(site.copy())
        new = await node.client.actions.retry(handle.id)
        assert (new.status, (await site.asked(new.id))["by"]) == ("waiting_approval", ["ada"])

    @pytest.mark.parametrize("way", ["expired", "cancelled", "one voice of two", "declined twice", "late"])
    async def test_an_undecided_payload_is_asked_again_however_it_ended(self, site: Site, way: str) -> None:
        app = site.copy(Approval(by=("ada", "bob"), quorum=2, within=60))
        worker, node = await site.worker(app), await site.node(app)
        handle = await node.client.submit("payer", 7, deadline=30 if way == "late" else None)
        if way == "one voice of two":
            await node.client.approve(handle.id, by="ada")
        if way.startswith("declined"):
            await node.client.reject(handle.id, by="ada")
            handle = await node.client.task((await node.client.actions.retry(handle.id)).id)
            await node.client.reject(handle.id, by="bob")
        elif way in ("expired", "late"):
            await site.world.let_pass(100, worker)
            pmo = await site.world.supervisor()

            async def has_ended() -> bool:
                await pmo.run_once()
                return (await handle.task()).is_ended

            await eventually(has_ended, "its time is over")
        else:
            await handle.cancel()
        await worker.close()
        await site.worker(site.copy())
        new = await node.client.actions.retry(handle.id)
        assert new.status == "waiting_approval"
        asked = await site.asked(new.id)
        assert (asked["by"], asked["quorum"], asked["votes"]) == (["ada", "bob"], 2, [])


class TestSubmissions:
    async def test_a_submitter_with_old_code_is_asked_all_the_same(self, site: Site) -> None:
        await site.worker(site.copy(Approval(by=("ada",), within=60)))
        node = await site.node(site.copy())
        one = await (await node.client.submit("payer", 7)).task()
        many = [await each.task() for each in await node.client.submit_many("payer", [7, 8])]
        keyed = await (await node.client.submit("payer", 7, key="once")).task()
        for task in (one, *many, keyed):
            assert task.status == "waiting_approval"
            assert (await site.asked(task.id))["by"] == ["ada"]
            assert task.expire_at == task.created_at + 60_000_000

    async def test_the_workers_settings_say_which_risk_is_grave(self, site: Site) -> None:
        grave: dict[str, object] = {"approval.risks": ["write_draft"], "approval.by": ["ada"]}
        await site.worker(site.copy(settings=grave, risk="write_draft"))
        node = await site.node(site.copy(risk="write_draft"))
        task = await (await node.client.submit("payer", 7)).task()
        assert (task.status, (await site.asked(task.id))["by"]) == ("waiting_approval", ["ada"])

    @pytest.mark.parametrize("way", ["call", "tool"])
    async def test_calls_of_a_worker_with_an_old_copy_are_asked(self, site: Site, way: str) -> None:
        strict = site.copy(Approval(by=("ada",)))
        await site.worker(strict, agents=["payer", "transfer"])
        old = site.copy()
        worker, node = await site.worker(old, agents=["boss"]), await site.node(old)
        handle = await node.client.submit("boss", way)
        await site.world.brought_to(worker, handle, "suspended")

        async def is_asked() -> bool:
            return len((await approvals.page(site.world.store, site.world.namespace))["items"]) == 1

        await eventually(is_asked, "people are asked")
        (child,) = await site.world.store.children(site.world.namespace, handle.id)
        assert child.status == "waiting_approval"

    async def test_the_strictest_of_all_copies_counts(self, site: Site) -> None:
        await site.worker(site.copy(Approval(by=("ada", "bob"), within=600)))
        node = await site.node(site.copy(Approval(by=("bob", "mallory"), within=60)))
        task = await (await node.client.submit("payer", 7)).task()
        assert (await site.asked(task.id))["by"] == ["bob"]
        assert task.expire_at == task.created_at + 60_000_000

    async def test_an_older_worker_that_registers_later_does_not_lift_the_rule(self, site: Site) -> None:
        strict = await site.worker(site.copy(Approval(by=("ada",))))
        loose = await site.worker(site.copy())
        node = await site.node(site.copy())

        async def status() -> str:
            return (await (await node.client.submit("payer", 7)).task()).status

        assert await status() == "waiting_approval"
        await strict.close()
        assert await status() == "waiting_approval", "until another worker registers the agent"
        await loose.close()
        await site.worker(site.copy())
        assert await status() == "queued"

    async def test_a_worker_that_lost_its_session_registers_its_rule_again(self, site: Site) -> None:
        strict = await site.worker(site.copy(Approval(by=("ada",))))
        strict._session.lose_lease(strict.session_id, "the test says so")
        await eventually(lambda: bool(strict.session_id), "it has a session again")
        await site.world.let_pass(3600, strict)  # the lease of the lost one has lapsed
        await site.worker(site.copy())
        node = await site.node(site.copy())
        assert (await (await node.client.submit("payer", 7)).task()).status == "waiting_approval"


class TestRulesRegisteredAfterTheSubmission:
    async def test_a_task_submitted_before_the_first_worker_is_asked_about_when_it_is_claimed(
        self, site: Site
    ) -> None:
        node = await site.node(site.copy())
        handle = await node.client.submit("payer", 7)
        assert (await handle.task()).status == "queued"
        worker = await site.worker(site.copy(Approval(by=("ada",), within=60)))
        task = await site.world.brought_to(worker, handle, "waiting_approval")
        asked = await site.asked(task.id)
        assert (task.started_at, asked["shown"], asked["by"]) == (None, 7, ["ada"])
        assert task.expire_at == task.updated_at + 60_000_000
        await node.client.approve(handle.id, by="ada")
        assert (await site.world.brought_to(worker, handle, "succeeded")).started_at is not None

    async def test_a_worker_without_the_rule_cannot_start_it_either(self, site: Site) -> None:
        node = await site.node(site.copy())
        handle = await node.client.submit("payer", 7)
        loose = await site.worker(site.copy())
        await site.worker(site.copy(Approval(by=("ada",))))
        await site.world.brought_to(loose, handle, "waiting_approval")

    async def test_a_claim_that_names_the_task_is_refused_and_asks(self, site: Site) -> None:
        node = await site.node(site.copy())
        handle = await node.client.submit("payer", 7)
        worker = await site.worker(site.copy(Approval(by=("ada",))))
        with pytest.raises(WrongStatus) as refused:
            await site.world.store.commit_one(site.claim(handle.id, worker))
        assert refused.value.code == "approval_needed"
        assert (await handle.task()).status == "waiting_approval"

    async def test_a_turn_dispatched_before_the_rule_is_not_started(self, site: Site) -> None:
        node = await site.node(site.copy())
        handle = await node.client.submit("payer", 7)
        await site.world.store.commit_one(c.DispatchNext(**site.command(), agent="payer", limit=1))
        worker = await site.worker(site.copy(Approval(by=("ada",))))
        with pytest.raises(WrongStatus) as refused:
            await site.world.store.commit_one(site.claim(handle.id, worker))
        assert refused.value.code == "approval_needed"
        assert (await handle.task()).status == "dispatched"
        pmo = await site.world.supervisor()

        async def is_in_its_owners_hands() -> bool:
            await site.world.let_pass(60, worker)
            await pmo.run_once()
            return (await handle.task()).status == "blocked"

        await eventually(is_in_its_owners_hands, "no worker took it, and it has no retries")
        await node.client.actions.unblock(handle.id)
        assert (await site.world.brought_to(worker, handle, "waiting_approval")).started_at is None

    async def test_a_task_that_has_run_before_is_not_asked_about(self, site: Site) -> None:
        node = await site.node(site.copy())
        handle = await node.client.submit("payer", 7)
        loose = await site.worker(site.copy())
        hand_back = c.HandBack(**site.command(), task_id=handle.id, attempt_id="a1", reason="stopping")
        claimed, handed_back = await site.world.store.commit((site.claim(handle.id, loose), hand_back))
        assert (claimed.refusal, handed_back.refusal) == (None, None)
        strict = await site.worker(site.copy(Approval(by=("ada",))))
        await site.world.brought_to(strict, handle, "succeeded")
