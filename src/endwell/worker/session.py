"""A worker's session: opened at the start, opened again when its lease was lost, closed at the end.

A worker that has lost its lease stops what ran under it and commits nothing more of it. It continues only
under a new session, and names the lost one when it opens that: turns that no other worker has taken are
handed back in the same commit, which costs them nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.session import EndReason
from endwell.runtime.base import Runtime
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.actor import Actor
from endwell.turn.agents import Agent
from endwell.turn.directory import Directory
from endwell.worker.heartbeat import HeartbeatLoop, LeaseHolder

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
"""How long to wait before a store that failed is asked again."""


class SessionOwner(LeaseHolder, Protocol):
    """The worker, as its session sees it."""

    concurrency: int

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The agents that it serves."""

    def on_session_lost(self) -> None:
        """All attempts have lost their tasks."""


class WorkerSession:
    """At most one session at a time; `id` is empty while there is none."""

    def __init__(
        self,
        actor: Actor,
        runtime: Runtime,
        settings: WorkerSettings,
        directory: Directory,
        owner: SessionOwner,
    ) -> None:
        self._actor = actor
        self._runtime = runtime
        self._settings = settings
        self._directory = directory
        self._owner = owner
        self._heartbeat: HeartbeatLoop | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._closing = False
        self._lost: str | None = None
        self.id = ""

    @property
    def is_good(self) -> bool:
        """Whether there is a session whose lease still holds by this process's own clock."""
        return self.seconds_left > 0

    @property
    def seconds_left(self) -> float:
        """How long the lease still holds; nothing is left when there is no session."""
        return self._heartbeat.seconds_left if self.id and self._heartbeat is not None else 0.0

    async def open(self) -> None:
        """Register the session and the agents, and start the heartbeat; only then can work begin."""
        session_id = self._actor.new_id()
        heartbeat = self._new_heartbeat(session_id)  # its lease counts from now, before the store is asked
        registration = self._directory.registration_command(
            self._owner.agents.values(), self._actor, session_id
        )
        for reply in await self._actor.commit((self._opening_command(session_id), registration)):
            if reply.refusal is not None:
                raise reply.refusal
        heartbeat.start()
        self.id, self._heartbeat, self._lost = session_id, heartbeat, None

    def _opening_command(self, session_id: str) -> c.OpenSession:
        agents = self._owner.agents
        return self._actor.command(
            c.OpenSession,
            session_id=session_id,
            kind="worker",
            name=self._actor.name,
            host=self._runtime.host_name(),
            pid=self._runtime.process_id(),
            agents=tuple(agents),
            concurrency=self._owner.concurrency,
            lease=int(self._settings.lease_seconds * SECOND),
            process=self._runtime.process_mark(),
            versions={name: agent.version or "" for name, agent in agents.items()},
            lost=self._lost,
        )

    def _new_heartbeat(self, session_id: str) -> HeartbeatLoop:
        return HeartbeatLoop(
            self._actor.with_name(session_id), self._runtime, self._settings, self._owner, self.lose_lease
        )

    def beat_now(self) -> None:
        """Ask the store at once: an attempt may have lost its task."""
        if self._heartbeat is not None:
            self._heartbeat.beat_now()

    def lose_lease(self, session_id: str, why: str) -> None:
        """The lease is gone, and with it everything held under it."""
        if not self.id or session_id != self.id or self._heartbeat is None:
            return
        log.error("worker %s lost session %s: %s", self._actor.name, session_id, why)
        self.id, self._lost = "", session_id
        self._owner.on_session_lost()
        if not self._closing:
            self._reopening = self._runtime.spawn(self._open_again(self._heartbeat), "endwell-open-session")

    async def _open_again(self, old: HeartbeatLoop) -> None:
        """Try to open a session twice a second; log the outage once, and its end."""
        await old.stop()
        level = logging.WARNING
        while not self._closing:
            try:
                await self.open()
                log.info("worker %s has a session again", self._actor.name)
                break
            except EndwellError as error:
                log.log(level, "worker %s cannot open a session yet: %s", self._actor.name, error)
                level = logging.DEBUG
                await self._runtime.sleep(self._pause_seconds)

    @property
    def _pause_seconds(self) -> float:
        """Shorter than the heartbeat for which a supervisor waits after an outage before it reclaims."""
        return min(PAUSE_SECONDS, self._settings.heartbeat_seconds / 3)

    async def close(self, reason: EndReason = "goodbye") -> None:
        """Stop the heartbeat and end the session now rather than by its lease."""
        self._closing = True
        if self._reopening is not None:
            await self._reopening
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        if self.id:
            await self._send_close(self.id, reason)
        elif self._lost is not None:
            await self._send_close(self._lost, "left")

    async def _send_close(self, session_id: str, reason: str) -> None:
        close = self._actor.command(c.CloseSession, session_id=session_id, reason=reason)
        try:
            await self._actor.commit((close,))
        except EndwellError as error:
            log.warning(
                "worker %s could not close its session, whose lease will lapse: %s", self._actor.name, error
            )
