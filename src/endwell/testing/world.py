"""A world for users' own tests: their agents on the real parts, in virtual time, with faults on request.

`await world.advance(hours=3)` takes no time. Workers can be crashed at any commit, frozen past their lease,
or cut off from doorbells; tools answer by script; the oracle of the simulator judges every transaction.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from msgspec.structs import replace

from endwell.app import Endwell
from endwell.client import AsyncHandle, Client
from endwell.errors import UsageError
from endwell.model import commands as c
from endwell.model.task import Task
from endwell.policy.limits import Limits
from endwell.settings import Settings, override
from endwell.testing.cluster import Cluster, ClusterMember
from endwell.testing.effect_sink import Outside
from endwell.testing.oracle.judging import Oracle
from endwell.testing.oracle.view import OracleView
from endwell.testing.scripts import ScriptedTool
from endwell.testing.store_tap import KilledError, Moment

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PULSES: Final[dict[str, object]] = {
    "worker.lease_seconds": 180.0,
    "worker.heartbeat_seconds": 60.0,
    "worker.poll_seconds": 60.0,
    "worker.watchdog_interval_seconds": 60.0,
    "pmo.watchdog_interval_seconds": 30.0,
}
"""Intervals of a world, slower than usual: they are the cost of an idle hour."""
LONGEST_WAIT_HOURS: Final = 30 * 24.0
RESTART_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0

When = Literal["before", "after"]
Trap = Callable[[ClusterMember, Moment, Sequence[c.Command]], bool]
"""Returns whether the worker is to be killed at this moment of its transaction."""


class World:
    """One installation of `app`, with workers, a supervisor and time of its own."""

    def __init__(
        self,
        app: Endwell | None = None,
        *,
        seed: int = 0,
        workers: int = 1,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.app = app or Endwell("sqlite:///unused.db")
        self.outside = Outside()
        self.tools: dict[str, ScriptedTool] = {}
        self.commits = 0
        self.crashes: list[str] = []
        self._directory = Path(tempfile.mkdtemp(prefix="endwell-world-"))
        self._settings = self._settings_with(settings or {})
        self._cluster = Cluster(seed, self._directory, self._register, self._settings)
        self._cluster.path.touch(0o600)
        self._view = OracleView(self._cluster.path, self.outside, Limits.of(self._settings, self.app.owner))
        self._oracle = Oracle(self._view)
        self._cluster.listeners.append(self._on_transaction)
        self._wanted_workers = workers
        self._is_started = False
        self._traps: list[Trap] = []
        self._overheard: list[c.Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(judge=kind is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(judge=kind is None)

    def close(self, *, judge: bool = True) -> None:
        """End it. The violations that the oracle has found are raised as an AssertionError."""
        try:
            if judge:
                self._raise_violations()
        finally:
            self._cluster.close()
            self._view.close()
            shutil.rmtree(self._directory, ignore_errors=True)

    def agent(self, name: str, **options: Any) -> Callable[[F], F]:
        """`@world.agent("clerk")` registers an agent for this world, as `@app.agent` does."""
        return self.app.agent(name, **options)

    @property
    def now_us(self) -> int:
        """The time of the world's wall clock."""
        return self._cluster.scheduler.now_us

    @property
    def trace(self) -> str:
        """A table of what each process did."""
        return self._cluster.trace.to_table()

    async def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Let time pass; everything that is due by then happens."""
        self._start()
        self._cluster.run(((days * 24 + hours) * 60 + minutes) * 60 + seconds, self._is_broken)
        self._raise_violations()

    async def submit(self, agent: str, payload: Any = None, **options: Any) -> WorldHandle:
        """Ask for work, as `app.submit` does."""
        handle = await self.ask(lambda client: client.submit(agent, payload, **options))
        return WorldHandle(self, handle)

    async def ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """Ask the world's client (`client.approve(…)`, `client.signal(…)`), and wait for the answer."""
        self._start()

        async def ask_client() -> T:
            return await question(self._client.client)

        return self.run(ask_client())

    def run(self, coro: Coroutine[Any, Any, T], *, hours: float = LONGEST_WAIT_HOURS) -> T:
        """Run a coroutine in the world until it has ended."""
        self._start()
        task = self._client.spawn(coro, "asked")
        self._cluster.run(hours * 3600, lambda: task.done() or self._is_broken())
        self._raise_violations()
        if not task.done():
            raise AssertionError(f"not within {hours:g} hours of the world's time\n{self.trace[-4000:]}")
        result: T = task.result()
        return result

    def crash_worker(self, name: str = "worker-1") -> None:
        """Kill a worker now, as `kill -9` does; its successor starts after a few seconds."""
        self._start()
        self._kill(self._cluster.members[name], "at once")

    def crash_at(self, step: str, when: When = "before") -> None:
        """Kill the worker that is about to record this step or effect, or has just recorded it; once.

        "before": the function of the step has run, and nothing records that.
        """

        def is_record(member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> bool:
            if moment != ("commit" if when == "before" else "committed"):
                return False
            found = [one for one in commands if isinstance(one, c.RecordStep | c.FinishEffect)]
            return any(_name_of(one.step) == step for one in found)

        self._kill_when(is_record, f"{when} the record of {step}")

    def crash_before_effect(self, effect: str) -> None:
        """Kill the worker right after it has committed the intent of this effect."""

        def is_intent(member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> bool:
            found = [one for one in commands if isinstance(one, c.IntendEffect)]
            return moment == "committed" and any(_name_of(one.step) == effect for one in found)

        self._kill_when(is_intent, f"before the effect {effect}")

    def crash_at_commit(self, number: int, when: When = "before") -> None:
        """Kill the worker at its n-th commit from now on that changes a task."""
        wanted = self.commits + number

        def is_commit(member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> bool:
            if not _changes_a_task(member, commands):
                return False
            at = self.commits + 1 if moment == "commit" else self.commits
            return moment == ("commit" if when == "before" else "committed") and at == wanted

        self._kill_when(is_commit, f"{when} commit {number}")

    def freeze_worker(self, name: str = "worker-1", *, seconds: float = 300.0) -> None:
        """Freeze a worker, by default for longer than its lease; then it wakes as a stale writer."""
        self._start()
        member = self._cluster.members[name]
        member.process.pause()
        self._cluster.add_to_trace(name, "! frozen", f"{seconds:g} s")
        self._cluster.scheduler.run_after(seconds, member.process.resume)

    def lose_doorbells(self, *, lost: bool = True) -> None:
        """Lose every ring between processes from now on; polling must find the work."""
        network = self._cluster.network
        network.fate = (lambda *_: []) if lost else network.usual_delays

    def double_doorbells(self) -> None:
        """Let every ring arrive three times from now on, the last much later."""
        self._cluster.network.fate = lambda *_: [0.001, 0.5, 20.0]

    async def repeat_deliveries(self) -> int:
        """Send every command of the workers again, unchanged; return how many there were.

        Each must be refused or change nothing; the oracle judges that.
        """
        commands = [one for one in self._overheard if isinstance(one, c.AttemptCommand)]
        for command in commands:
            again = replace(command, command_id=self._client.runtime.ids.new())
            await self.ask(lambda client, again=again: client.store.commit((again,)))  # type: ignore[misc]
        return len(commands)

    def jump_clock(self, seconds: float) -> None:
        """Set the machine's wall clock forward or back."""
        self._cluster.scheduler.wall_offset_us += round(seconds * 1e6)

    def tool(self, name: str) -> ScriptedTool:
        """Let a tool answer by script, in place of a tool that the app has under this name."""
        return self.tools.setdefault(name, ScriptedTool(name))

    def _settings_with(self, given: Mapping[str, object]) -> Settings:
        return override(self.app.settings, {**PULSES, **given}, source="world")

    def _register(self, app: Endwell) -> None:
        """Register the user's agents; agents of other processes run inside the worker."""
        scripted = self.tools.keys()
        app.agents = {
            name: _in_worker(agent) for name, agent in self.app.agents.items() if name not in scripted
        }
        app.effects = self.app.effects

    @property
    def _client(self) -> ClusterMember:
        return self._cluster.members["client"]

    def _start(self) -> None:
        if self._is_started:
            return
        self._is_started = True
        self._cluster.start("client", "client")
        self._cluster.start("pmo", "pmo")
        if self.app.agents.keys() - self.tools.keys():
            for number in range(self._wanted_workers):
                self._cluster.start(f"worker-{number + 1}", "worker")
        members = self._cluster.members.values()
        if not self._cluster.run(60, lambda: all(member.is_ready for member in members)):
            raise UsageError("the world could not be started")
        self._cluster.scheduler.run_after(RESTART_SECONDS, self._restart_ended)
        if self.tools:
            self._client.spawn(self._answer_tools(), "tools")

    def _restart_ended(self) -> None:
        for name, member in list(self._cluster.members.items()):
            if member.is_over:
                self._cluster.start(name, member.kind)
        self._cluster.scheduler.run_after(RESTART_SECONDS, self._restart_ended)

    async def _answer_tools(self) -> None:
        client, runtime = self._client.client, self._client.runtime
        seen: set[str] = set()
        while True:
            for call in await client.store.open_calls(client.namespace, task_id=None, limit=100):
                script = self.tools.get(call.tool)
                if script is not None and call.tool_call_id not in seen:
                    seen.add(call.tool_call_id)
                    card = await client.store.card(client.namespace, _call_card(call.tool_call_id))
                    self._client.spawn(script.answer(client, runtime, call.tool_call_id, card), call.tool)
            await runtime.sleep(LOOK_SECONDS)

    def _kill_when(self, is_moment: Trap, about: str) -> None:
        """Kill the first worker that comes to this moment."""

        def kill_if_moment(member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> bool:
            if member.kind != "worker" or not is_moment(member, moment, commands):
                return False
            self._traps.remove(kill_if_moment)
            self._kill(member, about)
            raise KilledError

        self._start()
        self._traps.append(kill_if_moment)

    def _kill(self, member: ClusterMember, about: str) -> None:
        self.crashes.append(f"{member.name} {about}")
        self._cluster.add_to_trace(member.name, "! killed", about)
        member.kill()

    def _on_transaction(self, member: ClusterMember, moment: Moment, commands: Sequence[c.Command]) -> None:
        if moment == "committed":
            self._view.now_us = self.now_us
            self._oracle.judge_commit()
            self._cluster.trace_events(member, self._view.take_steps())
            self._overheard += [one for one in commands if member.kind == "worker"]
            self.commits += _changes_a_task(member, commands)
        for trap in list(self._traps):
            trap(member, moment, commands)

    def _is_broken(self) -> bool:
        return bool(self._oracle.found)

    def _raise_violations(self) -> None:
        if self._is_started:
            self._view.now_us = self.now_us
            self._oracle.judge_all()
        if self._oracle.found:
            found = "\n".join(str(one) for one in self._oracle.found)
            raise AssertionError(f"{found}\n{self.trace}")


class WorldHandle:
    """A task of a world. Waiting for it lets the world's time pass."""

    def __init__(self, world: World, handle: AsyncHandle) -> None:
        self._world = world
        self._handle = handle
        self.id = handle.id
        self.deduplicated = handle.deduplicated

    async def result(self, *, hours: float = LONGEST_WAIT_HOURS) -> Any:
        """Wait for the end: the value, or TaskFailed, TaskTimedOut, TaskCancelled."""
        return self._world.run(self._handle.result(), hours=hours)

    async def task(self) -> Task:
        """Read the task."""
        return self._world.run(self._handle.task())

    async def status(self) -> str:
        """Read its status."""
        return (await self.task()).status

    async def why(self) -> dict[str, Any]:
        """Say where it is, what moves it next, and when it ends at the latest."""
        return self._world.run(self._handle.why())

    async def cancel(self, reason: str = "cancelled") -> Task:
        """End it now."""
        return self._world.run(self._handle.cancel(reason))

    async def history(self) -> list[str]:
        """List the types of its events, oldest first."""
        client = self._world._client.client
        events = await self._world.ask(lambda _: client.store.events_of_task(client.namespace, self.id))
        return [event.type for event in events]


def every_crash(
    app: Endwell, *, seed: int = 0, settings: Mapping[str, object] | None = None
) -> Iterator[World]:
    """Make one world without a crash, then one for each commit before or after which the worker can die.

    Use it as `for world in every_crash(app):` around the body of a test. A body with `n` commits runs
    `2n + 1` times.
    """
    with World(app, seed=seed, settings=settings) as undisturbed:
        yield undisturbed
        total = undisturbed.commits
    for number in range(1, total + 1):
        for when in ("before", "after"):
            with World(app, seed=seed, settings=settings) as world:
                world.crash_at_commit(number, when)
                yield world


def _in_worker(agent: Any) -> Any:
    return agent if agent.outside is None else replace(agent, outside=None)


def _name_of(step: str) -> str:
    return step.partition(":")[2].rpartition(")")[2].partition("#")[0]


def _changes_a_task(member: ClusterMember, commands: Sequence[c.Command]) -> bool:
    return member.kind == "worker" and any(isinstance(one, c.AttemptCommand | c.Submit) for one in commands)


def _call_card(call_id: str) -> str:
    task_id, _, step = call_id.partition(".s.")
    return f"{task_id}.c.{step}"
