"""Those who keep a simulated installation going: they submit, decide, answer and settle.

They do what is right; that they do it twice, too late or at a bad moment is the faults' business.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from endwell.client import Client
from endwell.errors import EndwellError, WrongStatus
from endwell.model import status as s
from endwell.model.task import waits_of
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.workload import ANYTHING, TaskOrder, expected

if TYPE_CHECKING:
    from endwell.testing.cluster import ClusterMember
    from endwell.testing.simulation import Simulation

ROUND_SECONDS: Final = 40.0
AGREES: Final = 0.85


class People:
    """One desk: whatever happens to its process, what has been seen to is known."""

    def __init__(self, sim: Simulation, dice: Dice) -> None:
        self._sim = sim
        self._dice = dice
        self._seen: set[str] = set()

    async def submit_all(self, member: ClusterMember) -> None:
        """Hand in every order at its time; one that was not acknowledged is handed in again."""
        sim = self._sim
        for order in sim.orders:
            while order.options["key"] not in sim.view.accepted:
                wait = order.at_seconds - sim.elapsed_us / 1e6
                await member.runtime.sleep(wait if wait > 0 else 0.1)
                try:
                    await sim.submit(member.client, order)
                except EndwellError as error:
                    sim.note_refusal("submit", error)
                    await member.runtime.sleep(5)

    async def look_after(self, member: ClusterMember) -> None:
        """Round after round."""
        while True:
            await member.runtime.sleep(ROUND_SECONDS * (0.5 + self._dice.random()))
            rounds = [self._approvals, self._calls, self._signals, self._effects]
            for see_to in (*rounds, self._blocked) if self._sim.parts.queue == "redis" else rounds:
                try:
                    await see_to(member)
                except EndwellError as error:
                    self._sim.note_refusal(see_to.__name__, error)

    async def _approvals(self, member: ClusterMember) -> None:
        for row in await member.client.store.approvals_page("default", only_open=True, limit=50):
            if not (self._sim.is_calm or self._dice.happens(0.5)):
                continue
            if self._dice.happens(AGREES):
                await member.client.approve(row.id, by="ada")
            else:
                await member.client.reject(row.id, by="bob")

    async def _calls(self, member: ClusterMember) -> None:
        for call in await member.client.store.open_calls("default", task_id=None, limit=50):
            if call.tool == "ask" and call.tool_call_id not in self._seen:
                self._seen.add(call.tool_call_id)
                fate = self._sim.tool_fates.popleft() if self._sim.tool_fates else ""
                if fate:
                    self._sim.happened(fate, "tool", call.tool_call_id)
                member.spawn(self._answer(member, call.tool_call_id, call.deadline, fate), "tool")

    async def _answer(self, member: ClusterMember, call_id: str, deadline: int, fate: str) -> None:
        sleep, client = member.runtime.sleep, member.client
        await sleep(self._dice.choice((0.1, 5, 30)))
        if fate == "tool_silent":
            return
        if fate == "tool_late":
            await sleep((deadline - self._sim.cluster.scheduler.now_us) / 1e6 + self._dice.random() * 20)
        try:
            if fate == "tool_fails":
                await client.fail_call(call_id, "it broke")
            else:
                await client.answer(call_id, 42)
            if fate == "tool_answers_twice":
                await client.answer(call_id, 43)
        except EndwellError as error:
            self._sim.note_refusal("answer", error)
            self._seen.discard(call_id)

    async def _signals(self, member: ClusterMember) -> None:
        for task in list(self._sim.view.tasks.values()):
            is_waiting = task.status == s.SUSPENDED and any(w.kind == "signal" for w in waits_of(task))
            if is_waiting and self._dice.happens(0.3):
                await member.client.signal(task.id, "go", "go")

    async def _blocked(self, member: ClusterMember) -> None:
        """A person unblocks what no worker took, at once or after accepting it, and forgets some of it."""
        for task in list(self._sim.view.tasks.values()):
            if task.status != s.BLOCKED or task.reason != "dispatch_timeout" or task.id in self._seen:
                continue
            choices = ("unblock", "unblock", "accept", "forget") if task.held_since is None else ("unblock",)
            fate = self._dice.choice(choices)
            if fate == "forget":
                self._seen.add(task.id)
            elif fate == "accept":
                await member.client.assign(task.id, "ada")
            else:
                await member.client.unblock(task.id)

    async def _effects(self, member: ClusterMember) -> None:
        """Say what became of unknown effects, once that can be known for sure."""
        store = member.client.store
        for effect in await store.effects_page("default", status="unknown", limit=50):
            found = self._sim.outside.find(effect.key)
            if found is not None:
                await member.client.settle_effect(effect.key, "done", found, by="ada")
            elif not self._sim.is_anybody_at(effect.attempt_id):
                with contextlib.suppress(WrongStatus):  # it is too early to say so
                    await member.client.settle_effect(effect.key, "not_done", by="ada")


async def submit(sim: Simulation, client: Client, order: TaskOrder) -> None:
    """Hand in an order and take down that it was accepted, and what must come of it."""
    handle = await client.submit(order.agent, order.payload, **order.options)
    key = order.options["key"]
    known = sim.view.accepted.setdefault(key, handle.id)
    if known != handle.id:
        sim.complain("submit", f"{key} is {known} and {handle.id}")
    value = expected(order.payload)
    if value is not ANYTHING:
        sim.view.expected[handle.id] = value
