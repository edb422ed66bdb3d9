"""One run of the demo, from an empty store to the reader's table."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from endwell.app import Endwell, Node
from endwell.demo import agents
from endwell.demo.agents import NAMESPACE, SINK, Job
from endwell.demo.crew import Crew, CrewMember, clean_environment
from endwell.demo.faults import FaultNotPossible, Faults
from endwell.demo.journal import Journal, Submitted
from endwell.demo.table import Table
from endwell.demo.watcher import Show, Watcher
from endwell.errors import EndwellError
from endwell.model.effect import Verdict
from endwell.model.status import TERMINAL
from endwell.runtime.base import Runtime
from endwell.runtime.child_process import PIPE, start_process
from endwell.runtime.ids import Ids, SeededIds
from endwell.settings import Settings, override

WORKERS = ("worker-1", "worker-2", "worker-3")
QUICK: dict[str, object] = {
    "worker.lease_seconds": 2.0,
    "worker.heartbeat_seconds": 0.5,
    "worker.poll_seconds": 0.5,
    "worker.quiet_poll_seconds": 0.5,
    "worker.effect_margin_seconds": 0.5,
    "pmo.watchdog_interval_seconds": 0.5,
    # Our kills are not the tasks' fault: however often one is hit, it is to be delivered again.
    "pmo.crash_limit": 20,
    "pmo.runaway_limit": 30,
}
SCRIPT = ("kill", "kill", "freeze", "kill", "kill", "wake", "pmo", "kill", "kill", "kill", "pmo")
PACE_SECONDS = 0.5
MORE_FREEZES = 7
"""A woken worker mostly hears from its heartbeat, before it writes anything, that all is lost; then all are
frozen once more."""
READER_SECONDS = 30.0
_REST_LOOK_SECONDS = 0.1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and where."""

    url: str
    namespace: str
    directory: Path
    tasks: int
    seed: int
    limit_seconds: float

    @property
    def concurrency(self) -> int:
        """Slots per worker: few enough that work lasts as long as the faults do."""
        return max(2, -(-self.tasks // 100))

    def env(self) -> dict[str, str]:
        extra = {NAMESPACE: self.namespace, SINK: str(self.directory / "sink.jsonl")}
        return clean_environment(self.url, QUICK, extra)

    def app(self, runtime: Runtime) -> Endwell:
        settings = override(Settings(), {**QUICK, "store": self.url}, source="demo")
        app = Endwell(namespace=self.namespace, settings=settings, runtime=runtime)
        app.agents.update(agents.app.agents)
        return app


class DemoRun:
    """Processes, tasks and faults of one run."""

    def __init__(self, plan: Plan, runtime: Runtime, node: Node, show: Show) -> None:
        self._plan = plan
        self._runtime = runtime
        self._node = node
        self._show = show
        self._dice: Ids = SeededIds(plan.seed)
        self._jobs = _jobs(plan.tasks, self._dice)
        self.journal = Journal(plan.directory / "journal.jsonl")
        self.crew = Crew(runtime, plan.directory, plan.env())
        self._watcher = Watcher(runtime, node.store, plan.namespace, self.crew, show, total=plan.tasks)
        self._faults = Faults(
            runtime,
            node.store,
            plan.namespace,
            crew=self.crew,
            journal=self.journal,
            watcher=self._watcher,
            show=show,
            dice=self._dice,
            start=self._start,
        )

    def _start(self, name: str, role: str) -> CrewMember:
        where = ("--namespace", self._plan.namespace)
        if role == "pmo":
            return self.crew.start(name, role, *where)
        who = ("--app", "endwell.demo.agents:app", "--name", name)
        return self.crew.start(name, role, *where, *who, "--concurrency", str(self._plan.concurrency))

    async def go(self) -> None:
        """Start everybody, submit and break things side by side, and wait until all is at rest."""
        members = [self._start("pmo", "pmo"), *(self._start(name, "worker") for name in WORKERS)]
        await self.crew.wait_ready(members)
        self._show.say(
            f"ready: a PMO and {len(WORKERS)} workers, {self._plan.concurrency} tasks each at a time"
        )
        watching = self._runtime.spawn(self._watcher.run(), "endwell-demo-watcher")
        try:
            await self._break_things()
            await self._rest()
            await self._watcher.look()
        finally:
            watching.cancel()

    async def _break_things(self) -> None:
        try:
            await self._follow_script()
        except FaultNotPossible as problem:
            self._show.say(f"{problem.message}; no more faults")
        await self._submit(len(self._jobs))

    async def _follow_script(self) -> None:
        """Some tasks are submitted before each fault, so that there is work to be hit."""
        share = max(1, len(self._jobs) // (len(SCRIPT) + 1))
        for step in SCRIPT:
            await self._submit(share)
            await self._step(step)
            await self._runtime.sleep(PACE_SECONDS)

    async def _step(self, step: str) -> None:
        match step:
            case "kill":
                await self._faults.kill_worker()
            case "pmo":
                await self._faults.kill_pmo()
            case "freeze":
                await self._faults.freeze(lambda: self._submit(1))
            case "wake":
                await self._wake()

    async def _wake(self) -> None:
        """Woken too late to write, or before it had anything to write: freeze it again."""
        for _ in range(MORE_FREEZES):
            if await self._faults.wake():
                return
            await self._submit(6)
            await self._faults.freeze(lambda: self._submit(1), count=len(WORKERS))
        await self._faults.wake()

    async def _submit(self, count: int) -> None:
        some, self._jobs = self._jobs[:count], self._jobs[count:]
        for agent in agents.AGENTS:
            mine = [job for kind, job in some if kind == agent]
            if mine:
                handles = await self._node.client.submit_many(agent, mine)
                self.journal.write(Submitted([handle.id for handle in handles]))

    async def _rest(self) -> None:
        while True:
            counts = await self._node.store.counts(self._plan.namespace)
            if not any(count for status, count in counts.items() if status not in TERMINAL):
                return
            if counts.get("blocked"):
                await self._look_and_settle()
            await self._runtime.sleep(_REST_LOOK_SECONDS)

    async def _look_and_settle(self) -> None:
        """A worker frozen between intent and call leaves a question that only a person may answer."""
        sink = Path(self._plan.env()[SINK])
        for effect in await self._node.store.effects_page(self._plan.namespace, status="unknown"):
            task = await self._node.store.task(self._plan.namespace, effect.task_id)
            if task.status != "blocked":
                continue
            verdict: Verdict = "done" if agents.was_published(sink, effect.key) else "not_done"
            await self._node.client.settle_effect(effect.key, verdict, by="demo")
            self._show.say(f"a person looked after effect {effect.key}: {verdict}")


def _jobs(count: int, dice: Ids) -> list[tuple[str, Job]]:
    """50 to 400 ms of work each; about every second job of the clerk fails once or twice."""
    jobs = []
    for number in range(count):
        agent = agents.AGENTS[number % len(agents.AGENTS)]
        failures = max(0, int(dice.fraction() * 4) - 1) if agent == "clerk" else 0
        jobs.append((agent, Job(number, 50 + int(dice.fraction() * 350), failures)))
    return jobs


async def run(plan: Plan, show: Show) -> Table:
    """Run it all and have the reader judge; past the time limit too: the table then shows what is missing."""
    runtime = Runtime.system()
    async with _open(plan, runtime, show) as this:
        try:
            async with runtime.timeout(plan.limit_seconds):
                await this.go()
        except TimeoutError:
            show.say(f"not at rest after {plan.limit_seconds:g} s; the table shows what is missing")
        finally:
            this.crew.end()
        return await _read(plan, runtime, this.journal)


@contextlib.asynccontextmanager
async def _open(plan: Plan, runtime: Runtime, show: Show) -> AsyncIterator[DemoRun]:
    async with plan.app(runtime).connect() as node:
        yield DemoRun(plan, runtime, node, show)


async def _read(plan: Plan, runtime: Runtime, journal: Journal) -> Table:
    argv = [sys.executable, "-m", "endwell.demo.reader", str(journal.path)]
    reader = start_process(argv, plan.env(), cwd=plan.directory, stdout=PIPE)
    try:
        line = await runtime.in_thread(reader.read_line, READER_SECONDS)
    finally:
        reader.kill()
        reader.wait(10)
        reader.close()
    if not line:
        raise EndwellError("the reader of store and sink ended without an answer")
    return msgspec.json.decode(line, type=Table)
