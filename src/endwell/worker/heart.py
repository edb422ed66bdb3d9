"""The heartbeat: keeps the session's lease alive from a thread of its own.

A blocked event loop does not lose the lease. The lease is measured by the monotonic clock from the
moment a request was *sent*, so a slow store can only shorten it; once it has run out, the worker is
told to stop by itself, whether or not anybody has reclaimed its tasks yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from endwell.errors import NotFound
from endwell.model.commands import Heartbeat
from endwell.runtime.base import RunningThread, Runtime
from endwell.runtime.loops import new_loop
from endwell.store.contract import Store

log = logging.getLogger(__name__)
SECOND = 1_000_000


class Heart:
    """`held` names what the worker holds; `on_stale` hears what it must let go of, `on_lost` that all is."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        namespace: str,
        session_id: str,
        lease_seconds: float,
        interval_seconds: float,
        held: Callable[[], tuple[tuple[str, str], ...]],
        on_stale: Callable[[tuple[str, ...]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._session_id = session_id
        self._lease_seconds = lease_seconds
        self._interval_seconds = interval_seconds
        self._held = held
        self._on_stale = on_stale
        self._on_lost = on_lost
        self._good_until = runtime.clock.monotonic() + lease_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._now_flag: asyncio.Event
        self._stopping = False
        self._thread: RunningThread | None = None
        self.failures = 0

    @property
    def is_good(self) -> bool:
        """Whether the lease still holds by this process's own clock."""
        return self._runtime.clock.monotonic() < self._good_until

    def start(self) -> None:
        """Beat in a thread until `stop`."""
        self._loop = new_loop()
        self._now_flag = asyncio.Event()
        self._thread = self._runtime.thread(self._run, "endwell-heartbeat")

    def beat_now(self) -> None:
        """Do not wait for the interval: something may have been taken from us."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._now_flag.set)

    async def stop(self) -> None:
        """No further beat; the session is for its owner to close."""
        self._stopping = True
        self.beat_now()
        if self._thread is not None:
            await self._runtime.in_thread(self._thread.join, self._lease_seconds)

    def _run(self) -> None:
        if self._loop is None:
            return
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # type: ignore[arg-type,return-value]
            runner.run(self._beat())

    async def _beat(self) -> None:
        store = self._store.sibling()
        if store is not self._store:
            await store.open()
        try:
            while not self._stopping:
                await self.beat_once(store)
                await self._runtime.wait(self._now_flag, self._interval_seconds)
                self._now_flag.clear()
        finally:
            if store is not self._store:
                await store.close()

    async def beat_once(self, store: Store) -> None:
        """One renewal. A failed one is not yet a lost lease; a lease that ran out is."""
        sent = self._runtime.clock.monotonic()
        try:
            async with self._runtime.timeout(max(0.05, self._good_until - sent)):
                reply = (await store.commit((self._command(),)))[0]
        except Exception as error:
            self.failures += 1
            log.warning("heartbeat of session %s failed: %r", self._session_id, error)
            if not self.is_good:
                self._on_lost("the lease ran out before it could be renewed")
            return
        if isinstance(reply.refusal, NotFound):
            self._on_lost("the session was given up by a supervisor")
        elif reply.refusal is not None:
            log.error("heartbeat of session %s was refused: %s", self._session_id, reply.refusal)
        else:
            self._good_until = sent + self._lease_seconds
            if reply.stale:
                self._on_stale(reply.stale)

    def _command(self) -> Heartbeat:
        return Heartbeat(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._session_id,
            session_id=self._session_id,
            lease=int(self._lease_seconds * SECOND),
            attempts=self._held(),
        )
