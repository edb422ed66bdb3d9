"""The people of a simulated installation: they submit, decide, answer and settle.

They do what is right. Faults make them do it twice, too late or at a bad moment.
"""

from __future__ import annotations

import contextlib
from typing import Final

from endwell.errors import EndwellError, WrongStatus
from endwell.model import status as s
from endwell.model.task import waits_of
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.cluster import ClusterMember
from endwell.testing.simulated_installation import SimulatedInstallation

ROUND_SECONDS: Final = 40.0
AGREES: Final = 0.85


class People:
    """They remember what they have done when the process at their desk is killed."""

    def __init__(self, sim: SimulatedInstallation, dice: Dice) -> None:
        self._sim = sim
        self._dice = dice
        self._done: set[str] = set()

    async def submit_all(self, member: ClusterMember) -> None:
        """Submit every order at its time, again and again until it is acknowledged."""
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
        """Look for decisions, answers and settlements that are due, round after round."""
        rounds = [self._decide_approvals, self._answer_calls, self._send_signals, self._settle_effects]
        if self._sim.parts.queue == "redis":
            rounds.append(self._unblock_tasks)
        while True:
            await member.runtime.sleep(ROUND_SECONDS * (0.5 + self._dice.random()))
            for look in rounds:
                try:
                    await look(member)
                except EndwellError as error:
                    self._sim.note_refusal(look.__name__, error)

    async def _decide_approvals(self, member: ClusterMember) -> None:
        for row in await member.client.store.approvals_page("default", only_open=True, limit=50):
            if not (self._sim.is_calm or self._dice.happens(0.5)):
                continue
            if self._dice.happens(AGREES):
                await member.client.approve(row.id, by="ada")
            else:
                await member.client.reject(row.id, by="bob")

    async def _answer_calls(self, member: ClusterMember) -> None:
        for call in await member.client.store.open_calls("default", task_id=None, limit=50):
            if call.tool == "ask" and call.tool_call_id not in self._done:
                self._done.add(call.tool_call_id)
                fate, _ = self._sim.reach("tool") or ("", 0)
                if fate:
                    self._sim.count_fault(fate, "tool", call.tool_call_id)
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
            self._done.discard(call_id)

    async def _send_signals(self, member: ClusterMember) -> None:
        for task in list(self._sim.view.tasks.values()):
            is_waiting = task.status == s.SUSPENDED and any(w.kind == "signal" for w in waits_of(task))
            if is_waiting and self._dice.happens(0.3):
                await member.client.signal(task.id, "go", "go")

    async def _unblock_tasks(self, member: ClusterMember) -> None:
        """Unblock tasks that no worker took: at once, after accepting them, or never."""
        for task in list(self._sim.view.tasks.values()):
            if task.status != s.BLOCKED or task.reason != "dispatch_timeout" or task.id in self._done:
                continue
            choices = ("unblock", "unblock", "accept", "forget") if task.held_since is None else ("unblock",)
            fate = self._dice.choice(choices)
            if fate == "forget":
                self._done.add(task.id)
            elif fate == "accept":
                await member.client.assign(task.id, "ada")
            else:
                await member.client.unblock(task.id)

    async def _settle_effects(self, member: ClusterMember) -> None:
        """Say whether unknown effects took place, once that can be known for sure."""
        store = member.client.store
        for effect in await store.effects_page("default", status="unknown", limit=50):
            found = self._sim.outside.find(effect.key)
            if found is not None:
                await member.client.settle_effect(effect.key, "done", found, by="ada")
            elif not self._sim.is_worked_on(effect.attempt_id):
                with contextlib.suppress(WrongStatus):  # it is too early to say so
                    await member.client.settle_effect(effect.key, "not_done", by="ada")
