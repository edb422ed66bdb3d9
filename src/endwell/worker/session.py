"""A worker's session: opened at the start, opened anew when the lease was lost, closed at the end.

The rule of the worker's epoch is kept here: a worker that has lost its lease stops what ran under it and
hands in nothing more of it. It works on only under a new session, and names the lost one when it
opens that: turns that no other worker has taken are handed back in the same commit, which costs them nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.model.session import EndReason
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.contract import Store
from endwell.worker.heartbeat import HeartbeatLoop, HeldWork

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
"""How long to wait before a store that failed is asked again."""


class WorkerSession:
    """At most one session at a time; `id` is empty while there is none."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        settings: WorkerSettings,
        *,
        namespace: str,
        name: str,
        agents: tuple[str, ...],
        versions: dict[str, str],
        concurrency: int,
        named: Callable[[], HeldWork],
        registering: Callable[[str], c.RegisterAgents],
        on_stale: Callable[[tuple[str, ...]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self._name = name
        self._agents = agents
        self._versions = versions
        self._concurrency = concurrency
        self._named = named
        self._registering = registering
        self._on_stale = on_stale
        self._on_lost = on_lost
        self._heart: HeartbeatLoop | None = None
        self._starting_over: asyncio.Task[None] | None = None
        self._closing = False
        self._lost: str | None = None
        self.id = ""

    @property
    def is_good(self) -> bool:
        """Whether there is a session and its lease still holds by this process's own clock."""
        return bool(self.id) and self._heart is not None and self._heart.is_good

    @property
    def seconds_left(self) -> float:
        """For how long the lease still holds; nothing is left when there is no session."""
        return self._heart.seconds_left if self.id and self._heart is not None else 0.0

    async def open(self) -> None:
        """Tell the store of it and of the agents, and start the heartbeat; only then can work begin."""
        session_id = self._runtime.ids.new()
        heart = self._new_heart(session_id)
        opening = (self._opening(session_id), self._registering(session_id))
        for reply in await self._store.commit(opening):
            if reply.refusal is not None:
                raise reply.refusal
        heart.start()
        self.id, self._heart, self._lost = session_id, heart, None

    def _opening(self, session_id: str) -> c.OpenSession:
        return c.OpenSession(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._name,
            session_id=session_id,
            kind="worker",
            name=self._name,
            host=self._runtime.host_name(),
            pid=self._runtime.process_id(),
            agents=self._agents,
            concurrency=self._concurrency,
            lease=int(self._settings.lease_seconds * SECOND),
            process=self._runtime.process_mark(),
            versions=self._versions,
            lost=self._lost,
        )

    def _new_heart(self, session_id: str) -> HeartbeatLoop:
        """Its lease counts from now, before the store is asked."""
        loop = asyncio.get_running_loop()
        return HeartbeatLoop(
            self._store,
            self._runtime,
            namespace=self._namespace,
            session_id=session_id,
            lease_seconds=self._settings.lease_seconds,
            interval_seconds=self._settings.heartbeat_seconds,
            named=self._named,
            on_stale=lambda attempts: _hand_over(loop, self._on_stale, attempts),
            on_lost=lambda why: _hand_over(loop, self.lose, session_id, why),
        )

    def beat_now(self) -> None:
        """Something may have been taken from us: ask at once."""
        if self._heart is not None:
            self._heart.beat_now()

    def lose(self, session_id: str, why: str) -> None:
        """The lease is gone, and with it everything held under it."""
        if not self.id or session_id != self.id or self._heart is None:
            return
        log.error("worker %s lost session %s: %s", self._name, session_id, why)
        self.id, self._lost = "", session_id
        self._on_lost()
        if not self._closing:
            self._starting_over = self._runtime.spawn(self._start_over(self._heart), "endwell-start-over")

    async def _start_over(self, old: HeartbeatLoop) -> None:
        """Told once per outage, and when it is over: it is tried twice a second."""
        await old.stop()
        level = logging.WARNING
        while not self._closing:
            try:
                await self.open()
                log.info("worker %s has a session again", self._name)
                break
            except EndwellError as error:
                log.log(level, "worker %s cannot open a session yet: %s", self._name, error)
                level = logging.DEBUG
                await self._runtime.sleep(self._pause_seconds)

    @property
    def _pause_seconds(self) -> float:
        """Shorter than the heartbeat for which a supervisor waits after an outage before it reclaims."""
        return min(PAUSE_SECONDS, self._settings.heartbeat_seconds / 3)

    async def close(self, reason: EndReason = "goodbye") -> None:
        """No more beats, and the session ends now rather than by its lease."""
        self._closing = True
        if self._starting_over is not None:
            await self._starting_over
        if self._heart is not None:
            await self._heart.stop()
        if self.id:
            await self._say_goodbye(self.id, reason)
        elif self._lost is not None:
            await self._say_goodbye(self._lost, "left")

    async def _say_goodbye(self, session_id: str, reason: str) -> None:
        goodbye = c.CloseSession(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._name,
            session_id=session_id,
            reason=reason,
        )
        try:
            await self._store.commit((goodbye,))
        except EndwellError as error:
            log.warning("worker %s could not say goodbye, its lease will lapse: %s", self._name, error)


def _hand_over(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    """From the heart's thread to the worker's loop, which may have closed meanwhile."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        log.debug("the worker's loop is closed")
