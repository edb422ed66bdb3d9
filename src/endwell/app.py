"""The app: puts store, doorbell, worker, PMO and client together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, TypeVarTuple

from endwell.backends import Ring, make_doorbell, make_sink, make_store
from endwell.client import Client, Handle
from endwell.doorbell.contract import Doorbell
from endwell.errors import UsageError
from endwell.model import names
from endwell.model.effect import Verdict
from endwell.pmo.relay.service import Relay
from endwell.pmo.relay.sink import Sink
from endwell.pmo.service import Pmo
from endwell.policy.limits import Limits
from endwell.redis_client import RedisClient
from endwell.registry import Registry
from endwell.runtime.base import Runtime
from endwell.runtime.portal import Portal
from endwell.runtime.processes import os_user
from endwell.runtime.running_calls import RunningCalls
from endwell.settings import Settings, as_queued, check, load, override
from endwell.settings.store_url import store_url
from endwell.store.actor import Actor
from endwell.store.contract import Store
from endwell.store.effect_store import EffectStore
from endwell.store.reclaimer import Absence
from endwell.streams.intake import StreamIntake
from endwell.streams.orchestrator.service import StreamOrchestratorService
from endwell.streams.protocol import Names, consumer_name
from endwell.turn.agents import Agent
from endwell.turn.directory import Directory
from endwell.turn.recorder import TurnResources
from endwell.worker.worker import Worker

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Endwell(Registry):
    """One installation: a store, its settings, and the agents that this process can run.

    With `effects`, an effect's result goes to that store before it is recorded.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        settings: Mapping[str, object] | Settings | None = None,
        runtime: Runtime | None = None,
        effects: EffectStore | None = None,
    ) -> None:
        self.namespace = names.namespace_name(namespace)
        self.settings = as_queued(_load_settings(settings))
        check(self.settings)
        self.url = store_url(self.settings, url)
        self.owner = self.settings.human.owner or os_user()
        self.limits = Limits.of(self.settings, self.owner)
        self.runtime = runtime or Runtime.system(threads=max(32, self.settings.worker.concurrency))
        self.effects = effects
        self.calls = RunningCalls()
        self.agents: dict[str, Agent] = {}
        self._front: AppFront | None = None
        self._front_lock = self.runtime.new_lock()

    def open_store(self, ring: Ring | None = None) -> Store:
        """A store for this installation, not yet opened."""
        return make_store(self.url, self.limits, self.runtime, ring)

    def open_bell(self) -> Doorbell:
        """A doorbell for this installation, not yet opened."""
        return make_doorbell(self.url, self.settings, self.runtime)

    def open_redis(self, *, blocking: bool = False) -> RedisClient:
        """A client of the server that carries the turns; it connects on first use."""
        return RedisClient(self.settings.redis.url, blocking=blocking)

    def open_sink(self) -> Sink:
        """The receiver of the relay's messages; it connects on first use."""
        return make_sink(self.settings, self.runtime)

    def served_agents(self, wanted: Sequence[str]) -> dict[str, Agent]:
        """The agents of these names; without names, all."""
        if unknown := sorted(set(wanted) - self.agents.keys()):
            known = ", ".join(sorted(self.agents))
            problem = f"this app has no agent {unknown[0]!r}"
            raise UsageError(problem, hint=f"its agents: {known or 'none'}", field="agents")
        if not self.agents:
            raise UsageError("this app has no agent to serve", hint="register one with @app.agent(...)")
        return {name: self.agents[name] for name in wanted or self.agents}

    def connect(self) -> Node:
        """`async with app.connect() as node:` gives an open store, a doorbell and a client."""
        return Node(self)

    def running(self, *, worker: bool = True, pmo: bool = True) -> Running:
        """`with` or `async with`: PMO and worker run in this process until the block ends."""
        return Running(self, worker=worker, pmo=pmo)

    def submit(self, agent: str, payload: Any = None, **options: Any) -> Handle:
        """Submit a task; options: `key=`, `priority=`, `delay=`, `deadline=`, `channel=`."""
        front = self.front()
        return Handle(front, front.call(lambda: front.client.submit(agent, payload, **options)))

    def submit_many(self, agent: str, payloads: Iterable[Any], **options: Any) -> list[Handle]:
        """Submit many tasks; if one is bad, none is stored."""
        front = self.front()
        handles = front.call(lambda: front.client.submit_many(agent, payloads, **options))
        return [Handle(front, handle) for handle in handles]

    def task(self, task_id: str) -> Handle:
        """A handle on an existing task."""
        front = self.front()
        return Handle(front, front.call(front.client.task, task_id))

    def answer(self, call_id: str, value: Any = None) -> dict[str, Any]:
        """Give a tool call its result; the first answer counts."""
        return self._ask_client(lambda client: client.answer(call_id, value))

    def fail_call(self, call_id: str, error: Any) -> dict[str, Any]:
        """Report that a tool call failed."""
        return self._ask_client(lambda client: client.fail_call(call_id, error))

    def signal(self, task_id: str, name: str, value: Any = None) -> dict[str, Any]:
        """Send a task a signal; it is kept until the task waits for it."""
        return self._ask_client(lambda client: client.signal(task_id, name, value))

    def approve(self, approval_id: str, *, by: str | None = None) -> dict[str, Any]:
        """Agree, in this person's name."""
        return self._ask_client(lambda client: client.approve(approval_id, by=by))

    def reject(self, approval_id: str, *, by: str | None = None) -> dict[str, Any]:
        """Decline, in this person's name."""
        return self._ask_client(lambda client: client.reject(approval_id, by=by))

    def settle_effect(
        self, key: str, verdict: Verdict, result: Any = None, *, by: str | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Record the outcome of an unknown effect: `done`, `not_done` or `abandon`."""
        return self._ask_client(lambda client: client.settle_effect(key, verdict, result, by=by, force=force))

    def unblock(self, task_id: str) -> None:
        """Continue a blocked task."""
        self.task(task_id).unblock()

    def assign(self, task_id: str, owner: str) -> None:
        """Make another person responsible for the task."""
        self.task(task_id).assign(owner)

    def _ask_client(self, ask: Callable[[Client], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
        front = self.front()
        return front.call(lambda: ask(front.client))

    def front(self) -> AppFront:
        """The synchronous front, opened on first use. Safe from agents' threads."""
        with self._front_lock:
            if self._front is None:
                self._front = AppFront(self)
            return self._front

    def close(self) -> None:
        """Close the synchronous front; the next use opens it again."""
        front, self._front = self._front, None
        if front is not None:
            front.close()


class Node:
    """An opened store, its doorbell and a client on the current event loop."""

    def __init__(self, app: Endwell) -> None:
        self.app = app
        self.bell = app.open_bell()
        self.store = app.open_store(self.bell.ring)
        self.client: Client

    async def __aenter__(self) -> Self:
        await self.store.open()
        try:
            await self.bell.open()
        except BaseException:
            await self.store.close()
            raise
        app, actor = self.app, self.make_actor(self.app.owner)
        self.client = Client(actor, self.bell, app.runtime, app.settings, agents=app.agents)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bell.close()
        await self.store.close()
        if self.app.effects is not None:
            await self.app.effects.close()

    def worker(
        self, *, name: str | None = None, concurrency: int | None = None, agents: Sequence[str] = ()
    ) -> Worker:
        """A worker on this node, not yet started; `agents` narrows what it serves."""
        app = self.app
        served = app.served_agents(agents)
        actor = self.make_actor(name or f"{app.runtime.host_name()}-{app.runtime.process_id()}")
        resources = TurnResources(
            store=self.store,
            runtime=app.runtime,
            settings=app.settings.worker,
            limits=app.limits,
            directory=Directory(self.store, app.namespace, app.agents, app.settings.approval),
            calls=app.calls,
            effects=app.effects,
        )
        intake = self._make_intake(actor.name, served)
        return Worker(
            actor, self.bell, app.settings, resources, served, concurrency=concurrency, intake=intake
        )

    def _make_intake(self, name: str, agents: Mapping[str, Agent]) -> StreamIntake | None:
        app, settings = self.app, self.app.settings
        if settings.queue.kind != "redis":
            return None
        names = Names.for_namespace(settings.redis.prefix, app.namespace)
        consumer = consumer_name(name, app.runtime.process_id())
        return StreamIntake(app.open_redis, names, consumer, app.runtime, settings, agents=agents)

    def _make_streams(self, name: str, absence: Absence) -> StreamOrchestratorService:
        app = self.app
        return StreamOrchestratorService(
            self.make_actor(name), self.bell, app.runtime, app.settings, app.open_redis, absence
        )

    def pmo(self, *, name: str | None = None) -> Pmo:
        """A supervisor on this node, not yet started."""
        app = self.app
        relay = self._relay(name or "pmo") if app.settings.relay.kind else None
        streams = self._make_streams if app.settings.queue.kind == "redis" else None
        actor = self.make_actor(name or f"pmo-{app.runtime.host_name()}-{app.runtime.process_id()}")
        return Pmo(actor, app.runtime, app.settings, relay=relay, streams=streams)

    def _relay(self, name: str) -> Relay:
        app = self.app
        sink, settings = app.open_sink(), app.settings.relay
        relay = Relay(self.store, sink, app.runtime, settings, namespace=app.namespace, name=name)
        self.bell.subscribe(relay.on_ring)
        return relay

    def make_actor(self, name: str) -> Actor:
        """Sends commands to the store in this name."""
        return Actor(self.store, self.app.runtime.ids, namespace=self.app.namespace, name=name)


class Services:
    """A worker and a PMO that run beside the caller until stopped."""

    def __init__(self, node: Node, *, worker: bool, pmo: bool) -> None:
        self._runtime = node.app.runtime
        self._parts: list[Worker | Pmo] = []
        if pmo:
            self._parts.append(node.pmo())
        if worker and node.app.agents:
            self._parts.append(node.worker())
        self._started: list[tuple[Worker | Pmo, asyncio.Task[None]]] = []

    async def start(self) -> None:
        """Start all of them, or none."""
        try:
            for part in self._parts:
                await part.start()
                self._started.append((part, self._runtime.spawn(part.run(), f"endwell-{part.name}")))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Drain, then close the sessions."""
        for part, _ in self._started:
            part.stop()
        for _, run in self._started:
            await run
        for part, _ in self._started:
            await part.close()


class Running:
    """PMO and worker inside this process; works with `with` and with `async with`."""

    def __init__(self, app: Endwell, *, worker: bool, pmo: bool) -> None:
        self._app = app
        self._which = {"worker": worker, "pmo": pmo}
        self._node: Node
        self._services: Services

    async def __aenter__(self) -> Client:
        self._node = await Node(self._app).__aenter__()
        try:
            self._services = await self._begin(self._node)
        except BaseException:
            await self._node.__aexit__()
            raise
        return self._node.client

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._services.stop()
        finally:
            await self._node.__aexit__()

    def __enter__(self) -> Endwell:
        front = self._app.front()
        try:
            self._services = front.portal.call(self._begin, front.node)
        except BaseException:
            self._app.close()
            raise
        return self._app

    async def _begin(self, node: Node) -> Services:
        services = Services(node, **self._which)
        await services.start()
        return services

    def __exit__(self, *_: object) -> None:
        try:
            self._app.front().portal.call(self._services.stop)
        finally:
            self._app.close()


class AppFront:
    """The synchronous front: a node on an event loop in its own thread."""

    def __init__(self, app: Endwell) -> None:
        self.portal = Portal()
        try:
            self.node = self.portal.call(Node(app).__aenter__)
        except BaseException:
            self.portal.close()
            raise

    @property
    def client(self) -> Client:
        return self.node.client

    def call(self, fn: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        """Run a coroutine function on the portal's event loop; return its result."""
        return self.portal.call(fn, *args)

    def close(self) -> None:
        try:
            self.portal.call(self.node.__aexit__)
        finally:
            self.portal.close()


def _load_settings(given: Mapping[str, object] | Settings | None) -> Settings:
    if isinstance(given, Settings):
        return given
    loaded = load(os.environ, Path.cwd())
    return override(loaded, given, source="code") if given else loaded
