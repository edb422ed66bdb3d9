"""One run of the demo: processes, tasks and faults, from an empty store to the reader's table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from endwell.app import Endwell, Node
from endwell.demo import agents
from endwell.demo.agents import AGENTS, NAMESPACE, SINK, Job
from endwell.demo.crew import Crew, CrewMember, clean_environment
from endwell.demo.records import Entry, Frozen, Killed, Submitted, Table, append_line
from endwell.demo.watcher import Holding, Show, Watcher
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
    # The kills are not the tasks' fault: a task that is hit often must still be delivered again.
    "pmo.crash_limit": 20,
    "pmo.runaway_limit": 30,
}
SCRIPT = ("kill", "kill", "freeze", "kill", "kill", "wake", "pmo", "kill", "kill", "kill", "pmo")
PACE_SECONDS = 0.5
MORE_FREEZES = 7
"""A woken worker often learns of its loss by its heartbeat, before it writes; then all are frozen again."""
FREEZE_TRIES = 20
PATIENCE_SECONDS = 15.0
"""How long to wait for a worker that holds tasks, or for the reclaim of a frozen worker's tasks."""
REFUSAL_SECONDS = 1.0
"""How long a woken worker may take until its first write is refused, or its heartbeat stops it."""
PROBE_SECONDS = 0.5
READER_SECONDS = 30.0
LOOK_SECONDS = 0.01
_REST_LOOK_SECONDS = 0.1


class FaultNotPossible(EndwellError):
    """No process could be hit; the verdict will name what was not shown."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and where."""

    url: str
    namespace: str
    directory: Path
    tasks: int
    seed: int
    limit_seconds: float

    @property
    def worker_slots(self) -> int:
        """Slots per worker: few enough that work lasts as long as the faults do."""
        return max(2, -(-self.tasks // 100))

    @property
    def sink_path(self) -> Path:
        return self.directory / "sink.jsonl"

    @property
    def journal_path(self) -> Path:
        return self.directory / "journal.jsonl"

    def make_env(self) -> dict[str, str]:
        """The environment of the run's processes."""
        return clean_environment(self.url, QUICK, {NAMESPACE: self.namespace, SINK: str(self.sink_path)})


class DemoRun:
    """Follows the script; faults hit only processes that hold tasks at that moment, by the store."""

    def __init__(self, plan: Plan, runtime: Runtime, node: Node, show: Show) -> None:
        self._plan = plan
        self._runtime = runtime
        self._client = node.client
        self._store = node.store
        self._show = show
        self._dice: Ids = SeededIds(plan.seed)
        self._make_jobs = _make_jobs(plan.tasks, self._dice)
        self._frozen: list[tuple[CrewMember, Holding, int]] = []
        self.crew = Crew(runtime, plan.directory, plan.make_env())
        self._watcher = Watcher(runtime, node.store, plan.namespace, self.crew, show)

    async def run(self) -> None:
        """Start the processes, submit tasks between faults, and wait until all tasks have ended."""
        members = [self._start("pmo", "pmo"), *(self._start(name, "worker") for name in WORKERS)]
        await self.crew.wait_ready(members)
        slots = self._plan.worker_slots
        self._show.add_line(f"ready: a PMO and {len(WORKERS)} workers, {slots} tasks each at a time")
        watching = self._runtime.spawn(self._watcher.run(), "endwell-demo-watcher")
        try:
            await self._follow_script()
            await self._submit(len(self._make_jobs))
            await self._wait_for_rest()
            await self._watcher.look_once()
        finally:
            watching.cancel()

    def _start(self, name: str, role: str) -> CrewMember:
        options = ["--namespace", self._plan.namespace]
        if role == "worker":
            options += ["--app", "endwell.demo.agents:app", "--name", name]
            options += ["--concurrency", str(self._plan.worker_slots)]
        return self.crew.start(name, role, *options)

    async def _follow_script(self) -> None:
        """Submit some tasks before each fault, so that there is work to be hit."""
        faults = {
            "kill": self._kill_worker,
            "pmo": self._kill_pmo,
            "freeze": self._freeze,
            "wake": self._wake,
        }
        share = max(1, len(self._make_jobs) // (len(SCRIPT) + 1))
        try:
            for name in SCRIPT:
                await self._submit(share)
                await faults[name]()
                await self._runtime.sleep(PACE_SECONDS)
        except FaultNotPossible as problem:
            self._show.add_line(f"{problem.message}; no more faults")

    async def _submit(self, count: int) -> None:
        some, self._make_jobs = self._make_jobs[:count], self._make_jobs[count:]
        for agent in AGENTS:
            if jobs := [job for kind, job in some if kind == agent]:
                handles = await self._client.submit_many(agent, jobs)
                self._write_journal(Submitted([handle.id for handle in handles]))

    def _write_journal(self, entry: Entry) -> None:
        append_line(self._plan.journal_path, entry)

    async def _kill_worker(self) -> None:
        victim, held = await self._find_busy()
        await self._kill(victim, held.session_id, f", which held {held.tasks}")

    async def _kill_pmo(self) -> None:
        await self._kill(self.crew.members["pmo"], None, "")

    async def _kill(self, victim: CrewMember, session_id: str | None, remark: str) -> None:
        """SIGKILL; a successor starts at once."""
        victim.kill()
        at = await self._store.now()
        self._write_journal(Killed(victim.pid, victim.role, victim.name, session_id, at))
        self._show.add_line(f"kill -9 {victim.name} (pid {victim.pid}){remark}")
        self._start(victim.name, victim.role)

    async def _freeze(self, count: int = 1) -> None:
        """SIGSTOP to workers that hold tasks.

        A process that stops inside a write keeps SQLite's file locked for all others, which is not what the
        demo is about. It is woken at once, and stopped at another moment.
        """
        for _ in range(FREEZE_TRIES):
            victim, held = await self._find_busy()
            victim.freeze()
            writing = self._runtime.spawn(self._submit(1), "endwell-demo-write")
            if await self._wait_until(writing.done, PROBE_SECONDS) and await self._still_holds(victim):
                self._frozen.append((victim, held, await self._store.now()))
                self._show.add_line(f"froze {victim.name} (pid {victim.pid}), which held {held.tasks}")
                if len(self._frozen) >= count:
                    return
            else:
                victim.wake()
            await self._runtime.sleep(0.05)
        if not self._frozen:
            raise FaultNotPossible("no worker could be frozen while it held tasks and no lock")

    async def _still_holds(self, victim: CrewMember) -> bool:
        held = (await self._watcher.read_holdings()).get(victim.pid)
        return held is not None and held.tasks > 0

    async def _wake(self) -> None:
        """Wake the frozen workers; freeze again until one of them tries a stale write."""
        for _ in range(MORE_FREEZES):
            if await self._is_refused_after_waking():
                return
            await self._submit(6)
            await self._freeze(len(WORKERS))
        await self._is_refused_after_waking()

    async def _is_refused_after_waking(self) -> bool:
        """SIGCONT to the frozen workers once their tasks were reclaimed; was a stale write refused?"""
        frozen, self._frozen = self._frozen, []
        before = self._watcher.events["write.refused"]
        for victim, held, at in frozen:
            await self._wait_until(self._watcher.has_reclaimed_from(held.session_id), PATIENCE_SECONDS)
            woken_at = await self._store.now()
            victim.wake()
            self._show.add_line(f"woke {victim.name} (pid {victim.pid}), which knows nothing of that")
            self._write_journal(Frozen(victim.pid, victim.name, held.session_id, at, woken_at))
        return await self._wait_until(lambda: self._watcher.events["write.refused"] > before, REFUSAL_SECONDS)

    async def _wait_until(self, is_true: Callable[[], bool], seconds: float) -> bool:
        limit = self._runtime.clock.monotonic() + seconds
        while not is_true() and self._runtime.clock.monotonic() < limit:
            await self._runtime.sleep(LOOK_SECONDS)
        return is_true()

    async def _find_busy(self) -> tuple[CrewMember, Holding]:
        """A worker that holds tasks now, by the store."""
        limit = self._runtime.clock.monotonic() + PATIENCE_SECONDS
        while self._runtime.clock.monotonic() < limit:
            held = await self._watcher.read_holdings()
            busy = [m for m in self.crew.workers() if m.pid in held and held[m.pid].tasks > 0]
            if busy:
                chosen = busy[int(self._dice.fraction() * len(busy))]
                return chosen, held[chosen.pid]
            await self._runtime.sleep(LOOK_SECONDS)
        raise FaultNotPossible(f"no worker held tasks for {PATIENCE_SECONDS:g} s")

    async def _wait_for_rest(self) -> None:
        while True:
            counts = await self._store.counts_by_status(self._plan.namespace)
            if not any(count for status, count in counts.items() if status not in TERMINAL):
                return
            if counts.get("blocked"):
                await self._settle_effects()
            await self._runtime.sleep(_REST_LOOK_SECONDS)

    async def _settle_effects(self) -> None:
        """A worker that was frozen between intent and call leaves an effect that only a person may settle."""
        for effect in await self._store.effects_page(self._plan.namespace, status="unknown"):
            if (await self._store.task(self._plan.namespace, effect.task_id)).status == "blocked":
                is_done = agents.was_published(self._plan.sink_path, effect.key)
                verdict: Verdict = "done" if is_done else "not_done"
                await self._client.settle_effect(effect.key, verdict, by="demo")
                self._show.add_line(f"a person looked after effect {effect.key}: {verdict}")


def _make_jobs(count: int, dice: Ids) -> list[tuple[str, Job]]:
    """50 to 400 ms of work each; about every second job of the clerk fails once or twice."""
    jobs = []
    for number in range(count):
        agent = AGENTS[number % len(AGENTS)]
        failures = max(0, int(dice.fraction() * 4) - 1) if agent == "clerk" else 0
        jobs.append((agent, Job(number, 50 + int(dice.fraction() * 350), failures)))
    return jobs


async def run(plan: Plan, show: Show) -> Table:
    """Run everything and let the reader judge; after the time limit the table shows what is missing."""
    runtime = Runtime.system()
    settings = override(Settings(), {**QUICK, "store": plan.url}, source="demo")
    app = Endwell(namespace=plan.namespace, settings=settings, runtime=runtime)
    app.agents.update(agents.app.agents)
    async with app.connect() as node:
        this = DemoRun(plan, runtime, node, show)
        try:
            async with runtime.timeout(plan.limit_seconds):
                await this.run()
        except TimeoutError:
            show.add_line(f"not at rest after {plan.limit_seconds:g} s; the table shows what is missing")
        finally:
            this.crew.end()
        return await _read_table(plan, runtime)


async def _read_table(plan: Plan, runtime: Runtime) -> Table:
    argv = [sys.executable, "-m", "endwell.demo.reader", str(plan.journal_path)]
    reader = start_process(argv, plan.make_env(), cwd=plan.directory, stdout=PIPE)
    try:
        line = await runtime.in_thread(reader.read_line, READER_SECONDS)
    finally:
        reader.kill()
        reader.wait(10)
        reader.close()
    if not line:
        raise EndwellError("the reader of store and sink ended without an answer")
    return msgspec.json.decode(line, type=Table)
