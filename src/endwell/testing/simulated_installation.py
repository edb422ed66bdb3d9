"""A simulated installation: its processes, the oracle that watches them, and what can be done to them.

Faults act on it and people work with it. `Simulation` runs it from its start to its verdict.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from endwell.app import Endwell
from endwell.client import Client
from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.policy.limits import Limits
from endwell.runtime.current import CURRENT_TURN
from endwell.runtime.ids import SeededIds
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing import workload
from endwell.testing.captured_log import CapturedLog
from endwell.testing.cluster import Cluster, ClusterMember, Kind, SimulatedApp
from endwell.testing.effect_sink import Outside
from endwell.testing.installation import SECRET, Installation
from endwell.testing.occasions import Occasions, PlannedFates
from endwell.testing.oracle.judging import Oracle
from endwell.testing.oracle.view import OracleView
from endwell.testing.store_tap import Moment


class SimulatedInstallation(Occasions):
    """An installation as its seed chose it. `open` lets the oracle watch it."""

    def __init__(self, seed: int, directory: Path, installation: Installation) -> None:
        self.seed = seed
        self.installation = installation
        self.parts = installation.parts
        self.settings = installation.all_settings()
        self.orders = installation.orders
        super().__init__(Cluster(seed, directory, self._register, self.settings, sticky=installation.sticky))
        self.outside = Outside(fates=PlannedFates(self), on_change=self._note_change)
        self.commits = 0
        self.log = CapturedLog(SECRET)
        self.kept: dict[str, Kind] = dict(installation.crew)
        self.down_until: dict[str, int] = {}
        self._ids = SeededIds(Dice(f"{seed}/ids").getrandbits(64))
        dice = Dice(f"{seed}/foreign")
        self.cluster.tools = lambda member: workload.foreign_tools(dice, member.runtime)
        self.cluster.listeners.append(self._on_transaction)
        self.view: OracleView
        self.oracle: Oracle

    @property
    def lease_seconds(self) -> float:
        return self.settings.worker.lease_seconds

    @property
    def tick_seconds(self) -> float:
        return self.settings.pmo.watchdog_interval_seconds

    @property
    def desk(self) -> ClusterMember | None:
        """The client process of the people, if it is up."""
        member = self.cluster.members.get("desk")
        return member if member is not None and member.is_up else None

    def members_of(self, kind: Kind) -> list[ClusterMember]:
        """List the processes of one kind, in the order of their names."""
        return [m for _, m in sorted(self.cluster.members.items()) if m.kind == kind]

    def open(self) -> None:
        """Create the database and let the oracle watch it."""
        self.cluster.path.touch(0o600)
        self.view = OracleView(self.cluster.path, self.outside, Limits.of(self.settings, "ada"))
        self.view.tick_us = round(
            max(self.tick_seconds, self.settings.worker.watchdog_interval_seconds) * SECOND
        )
        self.view.is_alive = self.cluster.is_alive
        self.view.log = self.log
        if self.parts.queue == "redis":
            self.view.streams = self.cluster.redis.server
        if self.parts.relay:
            self.view.receiver = self.cluster.receiver
            self.cluster.receiver.on_message = self.view.note_delivered
        self.oracle = Oracle(self.view)
        self.outside.on_run = self.view.note_run

    def run_member(self, name: str, kind: Kind, seconds: float) -> None:
        """Keep one more process running for a time."""
        self.kept[name] = kind

        def stop_member() -> None:
            self.kept.pop(name, None)
            member = self.cluster.members.get(name)
            if member is not None and not member.is_over:
                member.stop()

        self.cluster.scheduler.run_after(seconds, stop_member)

    def kill(self, member: ClusterMember, down_seconds: float) -> None:
        """Kill a process as `kill -9` does; its successor starts after a time."""
        self.down_until[member.name] = self.elapsed_us + round(down_seconds * SECOND)
        member.kill()

    def freeze(self, member: ClusterMember, seconds: float) -> None:
        """Stop a process as SIGSTOP does, and let it run again after a time."""
        member.process.pause()
        self.cluster.scheduler.run_after(seconds, member.process.resume)

    def shift_clock(self, seconds: float) -> None:
        """Set the machine's wall clock, forward or back."""
        self.cluster.scheduler.wall_offset_us += round(seconds * SECOND)

    def let_person_act(self, name: str, act: Callable[[Client], Awaitable[object]]) -> None:
        """Let a person act at the desk, while everything else runs; a refusal is no violation."""
        member = self.desk
        if member is not None:
            member.spawn(self._let_act(name, member, act), name)

    async def _let_act(
        self, name: str, member: ClusterMember, act: Callable[[Client], Awaitable[object]]
    ) -> None:
        await member.runtime.sleep(0)
        try:
            await act(member.client)
        except EndwellError as error:
            self.note_refusal(name, error)

    async def submit(self, client: Client, order: workload.TaskOrder) -> None:
        """Submit an order; record that it was accepted, and the result that it must have."""
        handle = await client.submit(order.agent, order.payload, **order.options)
        key = order.options["key"]
        known = self.view.accepted.setdefault(key, handle.id)
        if known != handle.id:
            self.report_violation("submit", f"{key} is {known} and {handle.id}")
        value = workload.expected_result(order.payload)
        if value is not workload.ANYTHING:
            self.view.expected[handle.id] = value

    def new_id(self) -> str:
        return self._ids.new()

    def is_worked_on(self, attempt_id: str | None) -> bool:
        """Whether a living process runs the turn of this attempt, or a call that the turn has left."""
        workers = [m.worker for m in self.members_of("worker") if not m.is_over and m.worker is not None]
        calls = [call for worker in workers for call in worker._turns._calls.in_progress()]
        is_held = any(attempt_id in worker._turns._held for worker in workers)
        return is_held or any(call.attempt_id == attempt_id for call in calls)

    def is_in_effect(self, member: ClusterMember) -> bool:
        """Whether a turn of this process is inside the function of an effect."""
        return self.outside.inside[member.process.pid] > 0

    def _register(self, app: Endwell) -> None:
        """Register the agents. Clients have a copy of the code from before the approval rule."""
        is_outdated = isinstance(app, SimulatedApp) and app.kind == "client"
        workload.register(app, self.outside, is_outdated=is_outdated)

    def _on_transaction(self, member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> None:
        if moment == "committed":
            self.commits += 1
            self.view.now_us = self.cluster.scheduler.now_us
            self.oracle.judge_commit()
            self.cluster.trace_events(member, self.view.take_steps())
            self.keep_commands(commands)
            if self.parts.relay and any(isinstance(one, c.MoveCursor) for one in commands):
                self.oracle.judge_move()
        self.reach(moment, member, commands)

    def _note_change(self, what: str, about: str) -> None:
        turn = CURRENT_TURN.get()
        self.cluster.add_to_trace("outside", what, f"{about} {turn.task_id if turn else ''}".rstrip())
