"""One seed, one history: an installation lives for two hours, much goes wrong, and the oracle watches.

For three quarters of the time faults come as planned; then everything is mended, and whatever was begun must
come to its end. The same seed gives the same trace, and a plan with fewer faults is a plan like any other:
that is how a failure is made small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from endwell.app import Endwell
from endwell.client import Client
from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.policy.limits import Limits
from endwell.runtime.clock import MICROSECONDS
from endwell.runtime.current import CURRENT_TURN
from endwell.runtime.ids import SeededIds
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing import people, workload
from endwell.testing.cluster import Cluster, ClusterMember, Kind, SimulatedApp
from endwell.testing.effect_sink import Outside
from endwell.testing.faults.registry import FAULTS, Planned, plan
from endwell.testing.installation import SECRET, Installation
from endwell.testing.log import Overheard, overheard
from endwell.testing.occasions import Occasions, PlannedFates
from endwell.testing.oracle.judging import Oracle, Violation
from endwell.testing.oracle.view import OracleView
from endwell.testing.store_tap import Moment

FAULT_COUNT: Final = 40
LONGEST_END_SECONDS: Final = 4 * 3600
CHECK_SECONDS: Final = 300.0
KEEP_SECONDS: Final = 6.0
LEAVE_SECONDS: Final = 120.0
TOLD: Final = 80


@dataclass(frozen=True)
class SimulationResult:
    """What became of one seed."""

    seed: int
    digest: str
    violations: tuple[Violation, ...]
    faults: Counter[str]
    tasks: int
    events: int
    commits: int
    steps: int
    judged: int
    ended: Counter[str]
    plan: tuple[Planned, ...]
    trace: str
    installation: Installation

    @property
    def is_good(self) -> bool:
        return not self.violations


class Simulation(Occasions):
    """`run()` gives the verdict."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        installation: Installation,
        faults: int | Sequence[Planned] = FAULT_COUNT,
    ) -> None:
        self.seed = seed
        self.installation = installation
        self.parts = installation.parts
        self.settings = installation.all_settings()
        self.calm_seconds = installation.calm_after_seconds
        self.orders = installation.orders
        if isinstance(faults, int):
            faults = plan(Dice(f"{seed}/faults"), faults, self.calm_seconds, self.parts.has)
        self.plan = tuple(faults)
        super().__init__(Cluster(seed, directory, self._register, self.settings, sticky=installation.sticky))
        self.outside = Outside(fates=PlannedFates(self), noted=self._note_change)
        self.people = people.People(self, Dice(f"{seed}/people"))
        self.commits = 0
        self.has_left = False
        self.log = Overheard(SECRET)
        self.kept: dict[str, Kind] = dict(installation.crew)
        self.cluster.tools = partial(workload.foreign_tools, Dice(f"{seed}/foreign"))
        self._down_until: dict[str, int] = {}
        self._ids = SeededIds(Dice(f"{seed}/ids").getrandbits(64))
        self.cluster.listeners.append(self._listen)
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
        """The people's process, if it is up."""
        member = self.cluster.members.get("desk")
        return member if member is not None and member.is_up else None

    def members(self, kind: Kind) -> list[ClusterMember]:
        """Those of one kind, in the order of their names."""
        return [m for _, m in sorted(self.cluster.members.items()) if m.kind == kind]

    def run(self) -> SimulationResult:
        """Live, be mended, come to rest, be judged."""
        with overheard(self.log):
            self._open()
            try:
                self._live()
                if not self._is_broken():
                    self._rest()
                if not self._is_broken():
                    self._leave()
            finally:
                self.cluster.close()
                self.view.close()
            self._look_at_what_is_left()
            return self._result()

    def _open(self) -> None:
        self.cluster.path.touch(0o600)
        self.view = OracleView(self.cluster.path, self.outside, Limits.of(self.settings, "ada"))
        slowest = max(self.tick_seconds, self.settings.worker.watchdog_interval_seconds)
        self.view.tick_us = round(slowest * MICROSECONDS)
        self.view.is_alive = self.cluster.is_alive
        self._show_parts()
        self.oracle = Oracle(self.view)
        self.outside.on_run = self.view.note_run
        self._keep_all()
        for planned in self.plan:
            at_us = round(planned.at_seconds * MICROSECONDS)
            self.cluster.scheduler.run_at(at_us, partial(self._inject, planned))
        self._every(KEEP_SECONDS, self._keep_all)
        self._every(CHECK_SECONDS, self._checkpoint)

    def _show_parts(self) -> None:
        """What the oracle sees of that which is not in the store."""
        self.view.log = self.log
        if self.parts.queue == "redis":
            self.view.streams = self.cluster.redis.server
        if self.parts.relay:
            self.view.receiver = self.cluster.receiver
            self.cluster.receiver.on_told = self.view.note_told

    def _live(self) -> None:
        self.cluster.run(self.calm_seconds, self._is_broken)
        self._calm_down()
        self.cluster.run(self.installation.seconds - self.calm_seconds, self._is_broken)

    def _rest(self) -> None:
        self.cluster.run(LONGEST_END_SECONDS, lambda: self._is_broken() or self._is_over())
        self.cluster.run(12 * self.view.tick_us / 1e6 + 2 * self.lease_seconds, self._is_broken)
        live = [member for member in self.cluster.members.values() if not member.is_over]
        self.view.live_pids = frozenset(member.process.pid for member in live)
        self.view.live_names = frozenset(f"{member.name}-{member.process.pid}" for member in live)
        if not self._is_broken():
            self.view.now_us = self.cluster.scheduler.now_us
            self.oracle.rest()

    def _leave(self) -> None:
        """Everybody is told to go, and goes."""
        self.kept.clear()
        for member in self.cluster.members.values():
            if member.service is None:
                member.kill()
            member.stop()
        longest = self.settings.worker.drain_seconds + 2 * self.tick_seconds + LEAVE_SECONDS
        self.cluster.run(longest, lambda: all(m.is_over for m in self.cluster.members.values()))
        self.view.still_here = [m.name for m in self.cluster.members.values() if not m.is_over]
        self.view.look_at_sessions()
        self.has_left = True

    def _look_at_what_is_left(self) -> None:
        if self.has_left:
            self.view.files = sorted(path.name for path in self.cluster.path.parent.iterdir())
            self.oracle.left()

    def _is_over(self) -> bool:
        is_all_in = len(self.view.accepted) == len(self.orders)
        return is_all_in and all(task.is_ended for task in self.view.tasks.values())

    def _is_broken(self) -> bool:
        return bool(self.oracle.found or self.complaints)

    def _result(self) -> SimulationResult:
        violations = (*self.oracle.found, *self.complaints)
        words = {word for one in violations for word in one.problem.replace(":", " ").split()}
        return SimulationResult(
            seed=self.seed,
            digest=self.cluster.trace.digest,
            violations=violations,
            faults=self.counted,
            tasks=len(self.view.tasks),
            events=self.view.seq,
            commits=self.commits,
            steps=self.cluster.scheduler.steps,
            judged=self.oracle.judged,
            ended=Counter(task.status for task in self.view.tasks.values()),
            plan=self.plan,
            trace=self._told(words & self.view.tasks.keys()) if violations else "",
            installation=self.installation,
        )

    def _told(self, task_ids: set[str]) -> str:
        """What concerns these tasks; if it is about none in particular, how it came to its end."""
        return self.cluster.trace.table(about=task_ids, last=None if task_ids else TOLD)

    def _every(self, seconds: float, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.cluster.scheduler.run_after(seconds, again)

        self.cluster.scheduler.run_after(seconds, again)

    def _checkpoint(self) -> None:
        self.view.steps_taken = self.cluster.scheduler.steps
        self.view.now_us = self.cluster.scheduler.now_us
        self.oracle.checkpoint()

    def _calm_down(self) -> None:
        """Everything is mended: from here on the bounds hold strictly."""
        self.forget_faults()
        self.view.calm_since_us = self.cluster.scheduler.now_us
        self._down_until.clear()
        for member in self.cluster.members.values():
            if member.process.is_paused:
                member.process.resume()
        self.cluster.note("machine", "is mended")

    def _keep_all(self) -> None:
        """Start whatever should run and does not."""
        for name, kind in list(self.kept.items()):
            member = self.cluster.members.get(name)
            if (member is None or member.is_over) and self._down_until.get(name, 0) <= self.elapsed_us:
                member = self.cluster.start(name, kind)
                if kind == "client":
                    member.spawn(self._people_at(member), "people")

    async def _people_at(self, member: ClusterMember) -> None:
        while not member.is_ready:
            await member.runtime.sleep(1)
        member.spawn(self.people.submit_all(member), "submit")
        member.spawn(self.people.look_after(member), "look-after")

    def keep(self, name: str, kind: Kind, seconds: float) -> None:
        """One more process, for so long."""
        self.kept[name] = kind

        def leave() -> None:
            self.kept.pop(name, None)
            member = self.cluster.members.get(name)
            if member is not None and not member.is_over:
                member.stop()

        self.cluster.scheduler.run_after(seconds, leave)

    def kill(self, member: ClusterMember, down_seconds: float) -> None:
        """As `kill -9`; it is started again after a while."""
        self._down_until[member.name] = self.elapsed_us + round(down_seconds * MICROSECONDS)
        member.kill()

    def freeze(self, member: ClusterMember, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT after so long."""
        member.process.pause()
        self.cluster.scheduler.run_after(seconds, member.process.resume)

    def jump(self, seconds: float) -> None:
        """Set the machine's clock."""
        self.cluster.scheduler.wall_offset_us += round(seconds * MICROSECONDS)

    def _inject(self, planned: Planned) -> None:
        FAULTS[planned.name].inject(self, Dice(f"{self.seed}/{planned.salt}"))

    def _listen(self, member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> None:
        if moment == "committed":
            self._after_commit(member)
            self.overhear(commands)
            if self.parts.relay and any(isinstance(one, c.MoveCursor) for one in commands):
                self.oracle.after_move()
        self.act_on(member, moment, commands)

    def _after_commit(self, member: ClusterMember) -> None:
        self.commits += 1
        self.view.now_us = self.cluster.scheduler.now_us
        self.oracle.after_commit()
        for step in self.view.steps:
            about = f"{step.event.task_id} {step.event.attempt_id or ''}"
            self.cluster.note(member.name, step.event.type, about, step.event.hash)
        self.view.steps = []

    def person_does(self, name: str, act: Callable[[Client], Awaitable[object]]) -> None:
        """Somebody acts at the desk, in the midst of everything else; hearing no is fine."""
        member = self.desk
        if member is not None:
            member.spawn(self._do(name, member, act), name)

    async def _do(self, name: str, member: ClusterMember, act: Callable[[Client], Awaitable[object]]) -> None:
        await member.runtime.sleep(0)
        try:
            await act(member.client)
        except EndwellError as error:
            self.note_refusal(name, error)

    async def submit(self, client: Client, order: workload.TaskOrder) -> None:
        """Hand in an order."""
        await people.submit(self, client, order)

    def new_id(self) -> str:
        return self._ids.new()

    def _register(self, app: Endwell) -> None:
        """Those who submit have a copy of the code from before the approval rule; workers have the newest."""
        is_outdated = isinstance(app, SimulatedApp) and app.kind == "client"
        workload.register(app, self.outside, is_outdated=is_outdated)

    def is_anybody_at(self, attempt_id: str | None) -> bool:
        """Whether a living process still runs the turn of this attempt, or a call that the turn has left."""
        workers = [m.worker for m in self.members("worker") if not m.is_over and m.worker is not None]
        calls = [call for worker in workers for call in worker._turns._calls.in_progress()]
        is_held = any(attempt_id in worker._turns._held for worker in workers)
        return is_held or any(call.attempt_id == attempt_id for call in calls)

    def is_in_effect(self, member: ClusterMember) -> bool:
        """Whether a turn of it is inside an effect's function."""
        return self.outside.inside[member.process.pid] > 0

    def _note_change(self, what: str, about: str) -> None:
        turn = CURRENT_TURN.get()
        self.cluster.note("outside", what, f"{about} {turn.task_id if turn else ''}")
