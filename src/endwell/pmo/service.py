"""The PMO process: clocks, then reclaims, then dispatch, once per interval. Any number of them may run."""

from __future__ import annotations

import asyncio
import logging

from endwell.errors import StoreError
from endwell.model import commands as c
from endwell.pmo.dispatch import Dispatcher
from endwell.pmo.reclaim import Reclaimer
from endwell.pmo.watchdog import Watchdog
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.runtime.processes import host_name, process_id
from endwell.settings import Settings
from endwell.store.contract import Store

log = logging.getLogger(__name__)

LATE_INTERVALS = 3
"""After so many missed ticks a supervisor has been away, and gives the workers time to come back."""


class Pmo:
    """`run()` supervises until `stop()`; tests call `run_once()`."""

    def __init__(
        self, store: Store, runtime: Runtime, settings: Settings, *, namespace: str, name: str | None = None
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self.name = name or f"pmo-{host_name()}-{process_id()}"
        self.session_id = runtime.ids.new()
        about = {"namespace": namespace, "actor": self.name}
        self.watchdog = Watchdog(store, runtime, **about)
        self.reclaimer = Reclaimer(store, runtime, **about)
        self.dispatcher = Dispatcher(store, runtime, patience_seconds=settings.worker.poll_seconds, **about)
        self._stop = asyncio.Event()
        self._last_tick: tuple[float, int] | None = None
        self._patient_until = 0.0
        self.failures = 0

    async def start(self) -> None:
        """Leave word that a supervisor is there."""
        await self._store.one(self._session())

    async def run(self) -> None:
        """Tick until told to stop."""
        while not self._stop.is_set():
            try:
                await self.run_once()
            except StoreError as error:
                self.failures += 1
                log.warning("%s: %s (%s)", self.name, error.message, error.code)
            except Exception:
                self.failures += 1
                log.exception("%s: a tick failed", self.name)
            await self._runtime.wait(self._stop, self._settings.pmo.watchdog_interval_seconds)

    async def run_once(self) -> None:
        """One tick, in the order that the design gives: clocks before reclaims before new work."""
        self._look_back()
        await self._renew()
        await self.watchdog.run_once()
        if self._runtime.clock.monotonic() >= self._patient_until:
            await self.reclaimer.run_once()
        await self.dispatcher.run_once()

    def _look_back(self) -> None:
        """A gap in our own ticks (sleep, outage) hit the workers too: wait one heartbeat for them."""
        away = self._seconds_since_last_tick()
        if away > LATE_INTERVALS * self._settings.pmo.watchdog_interval_seconds:
            log.warning("%s was away for %.1f s; reclaims wait one heartbeat", self.name, away)
            self._patient_until = self._runtime.clock.monotonic() + self._settings.worker.heartbeat_seconds

    def _seconds_since_last_tick(self) -> float:
        """By both clocks: while a machine sleeps, only the wall clock goes on."""
        now, wall = self._runtime.clock.monotonic(), self._runtime.clock.now_us()
        before, wall_before = self._last_tick or (now, wall)
        self._last_tick = (now, wall)
        return max(now - before, (wall - wall_before) / SECOND)

    async def _renew(self) -> None:
        beat = c.Heartbeat(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self.name,
            session_id=self.session_id,
            lease=self._lease(),
        )
        (reply,) = await self._store.commit((beat,))
        if reply.refusal is not None:
            self.session_id = self._runtime.ids.new()
            await self.start()

    def _session(self) -> c.OpenSession:
        return c.OpenSession(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self.name,
            session_id=self.session_id,
            kind="pmo",
            name=self.name,
            host=host_name(),
            pid=process_id(),
            agents=(),
            concurrency=0,
            lease=self._lease(),
        )

    def _lease(self) -> int:
        seconds = LATE_INTERVALS * self._settings.pmo.watchdog_interval_seconds
        return int(max(seconds, self._settings.worker.lease_seconds) * SECOND)

    def stop(self) -> None:
        """`run` returns after the tick under way."""
        self._stop.set()

    async def close(self) -> None:
        """Say goodbye."""
        goodbye = c.CloseSession(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self.name,
            session_id=self.session_id,
        )
        try:
            await self._store.commit((goodbye,))
        except StoreError as error:
            log.warning("%s could not say goodbye, its lease will lapse: %s", self.name, error)
