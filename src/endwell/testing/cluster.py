"""A cluster: the processes of one installation in one thread, with one SQLite file as their store.

Each member is an `Endwell` object of its own with the product's own parts; only time, chance, threads and
doorbells come from the scheduler. Members can be killed, paused, stalled, stopped politely and started again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from msgspec.structs import replace

from endwell.app import Endwell, Node
from endwell.client import Client
from endwell.doorbell.contract import Doorbell
from endwell.errors import EndwellError
from endwell.model.commands import Command
from endwell.model.moments import SECOND
from endwell.pmo.relay.sink import Sink
from endwell.pmo.service import Pmo
from endwell.redis_client import RedisClient
from endwell.runtime.virtual.runtime import VirtualRuntime, outside_of_loops, virtual_runtime
from endwell.runtime.virtual.scheduler import Dice, VirtualLoop, VirtualProcess, VirtualScheduler
from endwell.settings import Settings
from endwell.store.contract import Store
from endwell.testing.bell_network import BellNetwork, SimulatedDoorbell
from endwell.testing.foreign_worker import ForeignWorker, Tool
from endwell.testing.oracle.view import CommitStep
from endwell.testing.receiver import Receiver, SimulatedSink
from endwell.testing.redis.server import RedisNetwork, SimulatedRedis, SimulatedRedisClient
from endwell.testing.store_tap import Moment, TappedStore
from endwell.testing.trace import Trace
from endwell.worker.worker import Worker

SLOW_ANSWERS: Final = 0.25
"""Share of Redis commands after which other processes run before the answer arrives."""

Kind = Literal["worker", "pmo", "client", "foreign"]
Register = Callable[[Endwell], None]
Listener = Callable[["ClusterMember", Moment, Sequence[Command]], None]
"""Called at every transaction of every member; may raise what the database would raise, or kill."""


class Cluster:
    """The machine of the processes. `run(seconds)` lets virtual time pass."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        register: Register,
        settings: Mapping[str, object] | Settings | None = None,
        *,
        sticky: float = 0.5,
    ) -> None:
        self.seed = seed
        self.path = directory / "endwell.db"
        self.register = register
        self.settings = settings
        self.scheduler = VirtualScheduler(seed, sticky=sticky)
        self.network = BellNetwork(Dice(f"{seed}/bells"))
        self.redis = RedisNetwork(SimulatedRedis(self._redis_ms))
        self.redis.is_slow = partial(Dice(f"{seed}/lines").happens, SLOW_ANSWERS)
        self.receiver = Receiver()
        self.tools: Callable[[ClusterMember], Mapping[str, Tool]] = lambda member: {}
        self.trace = Trace()
        self.members: dict[str, ClusterMember] = {}
        self.graveyard: list[ClusterMember] = []
        self.listeners: list[Listener] = []
        self._pids = 100

    def add_to_trace(self, who: str, what: str, about: str = "", proof: bytes = b"") -> None:
        """Add a line to the trace, now."""
        self.trace.add(self.scheduler.elapsed_us, who, what, about, proof)

    def trace_events(self, member: ClusterMember, steps: Sequence[CommitStep]) -> None:
        """Add the events that a transaction of this member has logged to the trace."""
        for step in steps:
            about = f"{step.event.task_id} {step.event.attempt_id or ''}"
            self.add_to_trace(member.name, step.event.type, about, step.event.hash)

    def _redis_ms(self) -> int:
        """Return the time of the Redis server, whose clock is its own."""
        return (self.scheduler.start_us + self.scheduler.elapsed_us) // 1000

    def start(self, name: str, kind: Kind) -> ClusterMember:
        """Start a process of this name, or its successor if it has ended."""
        old = self.members.get(name)
        if old is not None:
            self.graveyard.append(old)
        self._pids += 1
        member = ClusterMember(self, name, kind, self._pids)
        self.members[name] = member
        self.add_to_trace(name, "starts", f"pid {member.process.pid}")
        return member

    def is_alive(self, pid: int) -> bool:
        """Whether a process of the machine runs; a paused one counts."""
        return any(member.process.pid == pid and not member.is_over for member in self.members.values())

    def run(self, seconds: float, done: Callable[[], bool] | None = None) -> bool:
        """Let time pass until `done` returns True, at most `seconds`; return whether it did."""
        until = self.scheduler.elapsed_us + round(seconds * SECOND)
        return outside_of_loops(lambda: self.scheduler.run_until(until, done))

    def close(self) -> None:
        """Kill every process and close its files."""
        for member in [*self.members.values(), *self.graveyard]:
            member.kill()
            member.runtime.close()


class SimulatedApp(Endwell):
    """The `Endwell` object of one simulated process, with simulated parts."""

    def __init__(self, member: ClusterMember, **options: Any) -> None:
        super().__init__(f"sqlite:///{member.cluster.path}", runtime=member.runtime, **options)
        self.limits = replace(self.limits, waits_in_row=1)  # so that even small gathers get rows of their own
        self._member = member
        self.kind = member.kind

    def open_store(self, ring: Callable[[set[str]], None] | None = None) -> Store:
        member = self._member
        store = TappedStore(
            member.cluster.path, member, limits=self.limits, runtime=member.runtime, ring=ring
        )
        member.stores.append(store)
        return store

    def open_bell(self) -> Doorbell:
        return SimulatedDoorbell(self._member.cluster.network, self._member.name)

    def open_redis(self, *, blocking: bool = False) -> RedisClient:
        member = self._member
        return SimulatedRedisClient(member.cluster.redis, member.runtime, member.name, blocking=blocking)

    def open_sink(self) -> Sink:
        return SimulatedSink(self._member.cluster.receiver, self._member.runtime, self._member.name)


class ClusterMember:
    """One simulated process, and what can be done to it from outside."""

    def __init__(self, cluster: Cluster, name: str, kind: Kind, pid: int) -> None:
        self.cluster = cluster
        self.name = name
        self.kind = kind
        self.process = VirtualProcess(cluster.scheduler, name, pid)
        self.runtime: VirtualRuntime = virtual_runtime(self.process, str(cluster.seed), cluster.is_alive)
        self.stores: list[TappedStore] = []
        self.app = SimulatedApp(self, settings=cluster.settings)
        cluster.register(self.app)
        self.node: Node | None = None
        self.service: Worker | Pmo | None = None
        self.foreign: ForeignWorker | None = None
        self.is_ready = False
        self.has_left = False
        self.loop: VirtualLoop = self.process.new_loop("main")
        self.spawn(self._main(), "main")

    @property
    def is_dead(self) -> bool:
        return self.process.is_dead

    @property
    def is_over(self) -> bool:
        """Whether it was killed or has left."""
        return self.process.is_dead or self.has_left

    @property
    def is_up(self) -> bool:
        """Whether it works at this moment."""
        return self.is_ready and not (self.is_over or self.process.is_paused)

    @property
    def client(self) -> Client:
        if self.node is None:
            raise RuntimeError(f"{self.name} is not ready")
        return self.node.client

    @property
    def worker(self) -> Worker | None:
        return self.service if isinstance(self.service, Worker) else None

    @property
    def held_count(self) -> int:
        """Count the turns that it holds."""
        if self.foreign is not None:
            return len(self.foreign.held)
        return len(self.worker._turns.live_turns()) if self.worker is not None else 0

    @property
    def held_tasks(self) -> tuple[str, ...]:
        """The tasks whose turns it holds."""
        return () if self.worker is None else tuple(task for task, _ in self.worker._turns.held_attempts())

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str) -> Any:
        """Run a coroutine in this process."""
        return self.loop.spawn(coro, f"{self.name}-{name}")

    def on_transaction(self, moment: Moment, commands: Sequence[Command]) -> None:
        """Pass a transaction on to the listeners of the cluster."""
        for listen in self.cluster.listeners:
            listen(self, moment, commands)

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        if not self.process.is_dead:
            self.process.kill()
            for store in self.stores:
                store.cut_off()

    def stop(self) -> None:
        """Ask it to stop, as SIGTERM does: it drains and closes its session."""
        if self.service is not None:
            self.service.stop()

    async def _main(self) -> None:
        if self.kind == "foreign":
            await self._run_foreign()
        try:
            async with Node(self.app) as node:
                self.node = node
                if self.kind == "client":
                    self.is_ready = True
                    await self.loop.create_future()  # until it is killed
                await self._serve(node)
        except (EndwellError, OSError) as error:  # it could not start; another is started
            self.cluster.add_to_trace(self.name, "gives up", type(error).__name__)
        # a process ends after its last thread
        while self.worker is not None and self.worker._turns.is_busy:
            await self.runtime.sleep(1)
        self.has_left = True
        self.cluster.add_to_trace(self.name, "leaves")

    async def _run_foreign(self) -> None:
        self.foreign = ForeignWorker(
            self.app.open_redis,
            self.runtime,
            f"{self.name}-{self.process.pid}",
            self.cluster.tools(self),
            heartbeat_seconds=self.app.settings.queue.HEARTBEAT_INTERVAL_S,
        )
        self.is_ready = True
        await self.foreign.run()

    async def _serve(self, node: Node) -> None:
        service = node.worker(name=self.name) if self.kind == "worker" else node.pmo(name=self.name)
        await service.start()
        self.service = service
        self.is_ready = True
        await service.run()
        await service.close()
