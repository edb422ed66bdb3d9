"""Puts the parts together; the only file that names concrete backends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, TypeVarTuple
from urllib.parse import urlsplit

from endwell.client import Client, Handle
from endwell.doorbell.contract import Doorbell
from endwell.doorbell.local import LocalDoorbell
from endwell.errors import BadSetting, UsageError
from endwell.model import names
from endwell.model.effect import Verdict
from endwell.pmo.relay.service import Relay
from endwell.pmo.relay.sink import Sink
from endwell.pmo.relay.webhook import Webhook
from endwell.pmo.service import Pmo
from endwell.policy.limits import Limits
from endwell.redis_client import RedisClient
from endwell.registry import Registry
from endwell.runtime.base import Runtime
from endwell.runtime.portal import Portal
from endwell.runtime.processes import os_user
from endwell.runtime.running_calls import RunningCalls
from endwell.settings import Settings, as_queued, check, load, override
from endwell.settings.store_url import sqlite_path, store_url
from endwell.store.actor import Actor
from endwell.store.contract import Store
from endwell.store.effect_store import EffectStore
from endwell.store.reclaimer import Absence
from endwell.store.sqlite.store import SqliteStore
from endwell.streams.contract import Intake
from endwell.streams.orchestrator.service import StreamOrchestratorService
from endwell.streams.protocol import Names, consumer_name
from endwell.turn.agents import Agent
from endwell.worker.worker import Worker

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Endwell(Registry):
    """One installation as this process sees it: a store, and the agents this process can run.

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
        self.settings = _settings(settings)
        self.settings = as_queued(self.settings)
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

    def open_store(self, ring: Callable[[set[str]], None] | None = None) -> Store:
        """A store for this installation, not yet opened."""
        parts = urlsplit(self.url)
        if parts.scheme == "sqlite":
            return SqliteStore(sqlite_path(self.url), limits=self.limits, runtime=self.runtime, ring=ring)
        from endwell.store.postgres.store import PostgresStore  # asyncpg is an extra

        return PostgresStore(self.url, limits=self.limits, runtime=self.runtime, ring=ring)

    def open_bell(self) -> Doorbell:
        """The doorbell that the settings name, or the one that fits the store; not yet opened."""
        kind = bell_kind(self.settings)
        if kind == "nats":
            return _nats_bell(self.settings, self.runtime)
        if kind == "redis":
            return _redis_bell(self.settings, self.runtime)
        if self.url.startswith("sqlite:"):
            return LocalDoorbell(str(sqlite_path(self.url)), runtime=self.runtime)
        from endwell.doorbell.postgres import PostgresDoorbell  # asyncpg is an extra

        return PostgresDoorbell(self.url, runtime=self.runtime)

    def open_line(self, *, blocking: bool = False) -> RedisClient:
        """A connection to the server that carries the turns; it connects when it is first used."""
        return RedisClient(self.settings.redis.url, blocking=blocking)

    def open_sink(self) -> Sink:
        """Where the relay tells what it has to tell."""
        return _sink(self.settings, self.runtime)

    def open_relay(self, store: Store, name: str) -> Relay | None:
        """What tells the outside, if the settings name a place to tell."""
        settings = self.settings.relay
        if not settings.kind:
            return None
        return Relay(store, self.open_sink(), self.runtime, settings, namespace=self.namespace, name=name)

    def connect(self) -> Node:
        """`async with app.connect() as node:` gives an open store, a doorbell and a client."""
        return Node(self)

    def running(self, *, worker: bool = True, pmo: bool = True) -> Running:
        """`with` or `async with`: PMO and worker run in this process until the block ends."""
        return Running(self, worker=worker, pmo=pmo)

    def submit(self, agent: str, payload: Any = None, **options: Any) -> Handle:
        """Ask for work; `key=`, `priority=`, `delay=`, `deadline=`, `channel=`."""
        front = self.front()
        return Handle(front, front.call(lambda: front.client.submit(agent, payload, **options)))

    def submit_many(self, agent: str, payloads: Iterable[Any], **options: Any) -> list[Handle]:
        """Ask for much work at once; if one is refused, none is stored."""
        front = self.front()
        handles = front.call(lambda: front.client.submit_many(agent, payloads, **options))
        return [Handle(front, handle) for handle in handles]

    def task(self, task_id: str) -> Handle:
        """A handle on a task that is already there."""
        front = self.front()
        return Handle(front, front.call(front.client.task, task_id))

    def answer(self, call_id: str, value: Any = None) -> dict[str, Any]:
        """Give a tool call its result; the first answer counts."""
        return self._asked(lambda client: client.answer(call_id, value))

    def fail_call(self, call_id: str, error: Any) -> dict[str, Any]:
        """Tell a tool call that it failed."""
        return self._asked(lambda client: client.fail_call(call_id, error))

    def signal(self, task_id: str, name: str, value: Any = None) -> dict[str, Any]:
        """Tell a task something by name; kept until it waits for it."""
        return self._asked(lambda client: client.signal(task_id, name, value))

    def approve(self, approval_id: str, *, by: str | None = None) -> dict[str, Any]:
        """Agree, as a person of that name."""
        return self._asked(lambda client: client.approve(approval_id, by=by))

    def reject(self, approval_id: str, *, by: str | None = None) -> dict[str, Any]:
        """Decline, as a person of that name."""
        return self._asked(lambda client: client.reject(approval_id, by=by))

    def settle_effect(
        self, key: str, verdict: Verdict, result: Any = None, *, by: str | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Say what became of an unknown effect: `done`, `not_done` or `abandon`."""
        return self._asked(lambda client: client.settle_effect(key, verdict, result, by=by, force=force))

    def unblock(self, task_id: str) -> None:
        """Let a blocked task go on."""
        self.task(task_id).unblock()

    def assign(self, task_id: str, owner: str) -> None:
        """Name another person who answers for the task."""
        self.task(task_id).assign(owner)

    def _asked(self, ask: Callable[[Client], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
        front = self.front()
        return front.call(lambda: ask(front.client))

    def front(self) -> AppFront:
        """The synchronous front, opened when first needed; agents may ask for it from their threads."""
        with self._front_lock:
            if self._front is None:
                self._front = AppFront(self)
            return self._front

    def close(self) -> None:
        """Close the synchronous front; it opens again when needed."""
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
        app = self.app
        actor = self.actor(app.owner)
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
        served = (
            {agent: app.agents[agent] for agent in agents if agent in app.agents} if agents else app.agents
        )
        if unknown := sorted(set(agents) - app.agents.keys()):
            raise UsageError(
                f"this app has no agent {unknown[0]!r}", hint=f"it has: {', '.join(sorted(app.agents))}"
            )
        if not served:
            raise UsageError("there is no agent to serve", hint="register one with @app.agent(...)")
        return Worker(
            self.store,
            self.bell,
            app.runtime,
            app.settings,
            app.limits,
            namespace=app.namespace,
            agents=served,
            known=app.agents,
            name=name,
            concurrency=concurrency,
            effects=app.effects,
            calls=app.calls,
            intake=self._intake(name, served),
        )

    def _intake(self, name: str | None, agents: Mapping[str, Agent]) -> Intake | None:
        app, settings = self.app, self.app.settings
        if settings.queue.kind != "redis":
            return None
        from endwell.streams.intake import StreamIntake  # redis is an extra

        pid = app.runtime.process_id()
        return StreamIntake(
            settings.redis.url,
            Names.of(settings.redis.prefix, app.namespace),
            consumer_name(name or f"{app.runtime.host_name()}-{pid}", pid),
            app.runtime,
            connect=app.open_line,
            block_seconds=settings.redis.block_seconds,
            agents=agents,
            heartbeat_seconds=settings.queue.HEARTBEAT_INTERVAL_S,
            quiet_seconds=settings.pmo.dispatched_retry_seconds or settings.queue.RECLAIM_INTERVAL_S,
        )

    def _streams(self, name: str, absence: Absence) -> StreamOrchestratorService:
        from endwell.streams.commands import StreamOrchestrator  # redis is an extra

        app, settings = self.app, self.app.settings
        names = Names.of(settings.redis.prefix, app.namespace)
        consumer = consumer_name(name, app.runtime.process_id())
        stream = StreamOrchestrator(
            settings.redis.url,
            names,
            consumer,
            app.runtime,
            connect=app.open_line,
            block_seconds=settings.redis.block_seconds,
        )
        return StreamOrchestratorService(
            self.store,
            self.bell,
            app.runtime,
            settings,
            stream,
            namespace=app.namespace,
            actor=name,
            absence=absence,
        )

    def pmo(self, *, name: str | None = None) -> Pmo:
        """A supervisor on this node, not yet started."""
        app = self.app
        relay = app.open_relay(self.store, name or "pmo")
        if relay is not None:
            self.bell.subscribe(relay.on_ring)
        streams = self._streams if app.settings.queue.kind == "redis" else None
        actor = self.actor(name or f"pmo-{app.runtime.host_name()}-{app.runtime.process_id()}")
        return Pmo(actor, app.runtime, app.settings, relay=relay, streams=streams)

    def actor(self, name: str) -> Actor:
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
        """Drain and say goodbye."""
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


def _sink(settings: Settings, runtime: Runtime) -> Sink:
    relay = settings.relay
    match relay.kind:
        case "nats" | "jetstream":
            from endwell.pmo.relay.nats import NatsSink  # nats-py is an extra

            url = relay.url or settings.nats.url
            return NatsSink(url, is_stream=relay.kind == "jetstream", timeout_seconds=relay.timeout_seconds)
        case "redis" | "redis_stream":
            from endwell.pmo.relay.redis import RedisSink  # redis is an extra

            url, prefix = relay.url or settings.redis.url, settings.redis.prefix
            return RedisSink(url, prefix=prefix, is_stream=relay.kind == "redis_stream")
    if not relay.secret and settings.source("relay.secret") != "default":
        raise BadSetting(
            f"relay.secret is empty, as set by {settings.source('relay.secret')}: nothing would be signed",
            hint="give it a value, or leave it out altogether",
            field="relay.secret",
        )
    return Webhook(
        relay.url,
        runtime=runtime,
        secret=relay.secret,
        batch=relay.webhook_batch,
        timeout_seconds=relay.timeout_seconds,
    )


def bell_kind(settings: Settings) -> str:
    """`nats`, `redis`, or `store` for the one that the store brings."""
    if settings.doorbell.kind != "auto":
        return settings.doorbell.kind
    return "nats" if settings.nats.url else "redis" if settings.redis.url else "store"


def _nats_bell(settings: Settings, runtime: Runtime) -> Doorbell:
    from endwell.doorbell.nats import NatsDoorbell  # nats-py is an extra

    return NatsDoorbell(settings.nats.url, runtime=runtime, patience_seconds=settings.worker.poll_seconds)


def _redis_bell(settings: Settings, runtime: Runtime) -> Doorbell:
    from endwell.doorbell.redis import RedisDoorbell  # redis is an extra

    return RedisDoorbell(
        settings.redis.url,
        runtime=runtime,
        prefix=settings.redis.prefix,
        patience_seconds=settings.worker.poll_seconds,
    )


def _settings(given: Mapping[str, object] | Settings | None) -> Settings:
    if isinstance(given, Settings):
        return given
    loaded = load(os.environ, Path.cwd())
    return override(loaded, given, source="code") if given else loaded
