"""One seed, one history: an installation lives for two hours, faults happen, and the oracle judges.

For three quarters of the time faults happen as planned; then everything is mended, and every task must end.
The same seed gives the same trace. A plan with fewer faults is a plan like any other: that is how a
failure is shrunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from endwell.model.moments import SECOND
from endwell.runtime.virtual.scheduler import Dice
from endwell.testing.captured_log import capture_log
from endwell.testing.cluster import ClusterMember
from endwell.testing.faults.registry import FAULTS, Planned, plan_faults
from endwell.testing.installation import Installation
from endwell.testing.oracle.judging import Violation
from endwell.testing.people import People
from endwell.testing.simulated_installation import SimulatedInstallation

FAULT_COUNT: Final = 40
LONGEST_END_SECONDS: Final = 4 * 3600
CHECK_SECONDS: Final = 300.0
KEEP_SECONDS: Final = 6.0
"""Time between two looks for processes that have ended and are to be started again."""
LEAVE_SECONDS: Final = 120.0
TRACE_LINES: Final = 80
"""Lines of the trace in a failure that concerns no task."""


@dataclass(frozen=True)
class SimulationResult:
    """The verdict on one seed, with what led to it."""

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


class Simulation(SimulatedInstallation):
    """`run()` returns the verdict."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        installation: Installation,
        faults: int | Sequence[Planned] = FAULT_COUNT,
    ) -> None:
        if isinstance(faults, int):
            dice, has = Dice(f"{seed}/faults"), installation.parts.has
            faults = plan_faults(dice, faults, installation.calm_after_seconds, has)
        self.plan = tuple(faults)
        super().__init__(seed, directory, installation)
        self.people = People(self, Dice(f"{seed}/people"))

    def run(self) -> SimulationResult:
        """Let faults happen, mend everything, wait for all tasks to end, stop every process, and judge."""
        with capture_log(self.log):
            has_left = False
            self.begin()
            try:
                self._run_with_faults()
                if not self.is_broken:
                    self._come_to_rest()
                if not self.is_broken:
                    self._stop_all()
                    has_left = True
            finally:
                self.cluster.close()
                self.view.close()
            if has_left:
                self.view.files = sorted(path.name for path in self.cluster.path.parent.iterdir())
                self.oracle.judge_left()
            return self.result()

    def begin(self) -> None:
        """Start the processes, and plan the faults and the checkpoints."""
        self.open()
        self._keep_running()
        for planned in self.plan:
            at_us = round(planned.at_seconds * SECOND)
            self.cluster.scheduler.run_at(at_us, partial(self._inject_fault, planned))
        self._repeat_every(KEEP_SECONDS, self._keep_running)
        self._repeat_every(CHECK_SECONDS, self._judge_checkpoint)

    @property
    def is_broken(self) -> bool:
        """Whether a violation has been found: the rest of the history is of no interest."""
        return bool(self.oracle.found or self.complaints)

    def _run_until(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        self.cluster.run(seconds, lambda: self.is_broken or done())

    def _run_with_faults(self) -> None:
        calm_after = self.installation.calm_after_seconds
        self._run_until(calm_after)
        self._end_faults()
        self._run_until(self.installation.seconds - calm_after)

    def _end_faults(self) -> None:
        """End all faults: from here on tasks must keep their bounds strictly."""
        self.forget_faults()
        self.view.calm_since_us = self.cluster.scheduler.now_us
        self.down_until.clear()
        for member in self.cluster.members.values():
            if member.process.is_paused:
                member.process.resume()
        self.cluster.add_to_trace("machine", "is mended")

    def _come_to_rest(self) -> None:
        self._run_until(LONGEST_END_SECONDS, self._has_ended)
        self._run_until(12 * self.view.tick_us / 1e6 + 2 * self.lease_seconds)
        live = [member for member in self.cluster.members.values() if not member.is_over]
        self.view.live_pids = frozenset(member.process.pid for member in live)
        self.view.live_names = frozenset(f"{member.name}-{member.process.pid}" for member in live)
        if not self.is_broken:
            self.view.now_us = self.cluster.scheduler.now_us
            self.oracle.judge_rest()

    def _has_ended(self) -> bool:
        is_all_in = len(self.view.accepted) == len(self.orders)
        return is_all_in and all(task.is_ended for task in self.view.tasks.values())

    def _stop_all(self) -> None:
        """Stop every process politely, and wait until it has left."""
        self.kept.clear()
        members = self.cluster.members.values()
        for member in members:
            if member.service is None:
                member.kill()
            member.stop()
        longest = self.settings.worker.drain_seconds + 2 * self.tick_seconds + LEAVE_SECONDS
        self.cluster.run(longest, lambda: all(member.is_over for member in members))
        self.view.still_here = [member.name for member in members if not member.is_over]
        self.view.note_open_sessions()

    def result(self) -> SimulationResult:
        """Return the verdict so far."""
        violations = (*self.oracle.found, *self.complaints)
        words = {word for one in violations for word in one.problem.replace(":", " ").split()}
        about = words & self.view.tasks.keys()
        last = None if about else TRACE_LINES
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
            trace=self.cluster.trace.to_table(about=about, last=last) if violations else "",
            installation=self.installation,
        )

    def _repeat_every(self, seconds: float, call: Callable[[], None]) -> None:
        def call_again() -> None:
            call()
            self.cluster.scheduler.run_after(seconds, call_again)

        self.cluster.scheduler.run_after(seconds, call_again)

    def _judge_checkpoint(self) -> None:
        self.view.steps_taken = self.cluster.scheduler.steps
        self.view.now_us = self.cluster.scheduler.now_us
        self.oracle.judge_all()

    def _keep_running(self) -> None:
        """Start every process that should run and does not."""
        for name, kind in list(self.kept.items()):
            member = self.cluster.members.get(name)
            if (member is None or member.is_over) and self.down_until.get(name, 0) <= self.elapsed_us:
                member = self.cluster.start(name, kind)
                if kind == "client":
                    member.spawn(self._bring_people(member), "people")

    async def _bring_people(self, member: ClusterMember) -> None:
        while not member.is_ready:
            await member.runtime.sleep(1)
        member.spawn(self.people.submit_all(member), "submit")
        member.spawn(self.people.look_after(member), "look-after")

    def _inject_fault(self, planned: Planned) -> None:
        FAULTS[planned.name].inject(self, Dice(f"{self.seed}/{planned.salt}"))
