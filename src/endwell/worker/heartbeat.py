"""The heartbeat: renews the session's lease from a thread of its own.

A blocked event loop does not lose the lease. The lease is measured by the monotonic clock from the moment a
request was *sent*, so a slow store can only shorten it. When it has run out, the worker stops by itself,
whether or not its tasks were reclaimed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from endwell.errors import NotFound
from endwell.model.commands import Heartbeat
from endwell.model.moments import SECOND
from endwell.runtime.base import Beside, Runtime
from endwell.settings.sections import WorkerSettings as WorkerSettings
from endwell.store.actor import Actor
from endwell.store.contract import Store
from endwell.turn.recorder import LONG_STEP_SECONDS

log = logging.getLogger(__name__)
LOOKS = 3
"""Looks for something new to report in one interval, if the interval is long."""
IDLE_INTERVALS = 2
"""A worker that holds nothing beats every this many intervals."""
LAST_TRY = 20
"""A beat waits for its answer for at least this part of a lease: a store that is merely slow is not lost."""
MOST_STEPS = 500
"""Most steps that one heartbeat names."""

Steps = tuple[tuple[str, str, int], ...]
"""Attempt, step and start."""


class HeldWork(msgspec.Struct, frozen=True):
    """What a heartbeat names: attempts held, claims without an answer, steps under way."""

    attempts: tuple[tuple[str, str], ...] = ()
    claims: tuple[str, ...] = ()
    doing: Steps = ()
    tick_age: int | None = None

    @property
    def is_idle(self) -> bool:
        return not (self.attempts or self.claims or self.doing)


class LeaseHolder(Protocol):
    """Whose lease it is: what it holds, and what it must let go of."""

    def held_work(self) -> HeldWork:
        """What is held now. The heartbeat's thread calls this."""

    def on_stale(self, attempts: tuple[str, ...]) -> None:
        """These attempts have lost their tasks."""


class HeartbeatLoop:
    """Renews the lease of one session, which is the actor of its commands."""

    def __init__(
        self,
        session: Actor,
        runtime: Runtime,
        settings: WorkerSettings,
        holder: LeaseHolder,
        on_lost: Callable[[str, str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = session
        self._runtime = runtime
        self._lease_seconds = settings.lease_seconds
        self._interval_seconds = settings.heartbeat_seconds
        self._look_seconds = max(LONG_STEP_SECONDS, self._interval_seconds / LOOKS)
        self._holder = holder
        self._on_lost = on_lost
        self._good_until = runtime.clock.monotonic() + self._lease_seconds
        self._must_beat: asyncio.Event
        self._stopping = False
        self._thread: Beside | None = None
        self._reported: Steps = ()
        self.failures = 0

    @property
    def is_good(self) -> bool:
        """Whether the lease still holds by this process's own clock."""
        return self.seconds_left > 0

    @property
    def seconds_left(self) -> float:
        """How long the lease still holds by this process's own clock."""
        return self._good_until - self._runtime.clock.monotonic()

    def start(self) -> None:
        """Beat in a thread until `stop`."""
        self._must_beat = asyncio.Event()
        self._thread = self._runtime.start_loop(self._run, "endwell-heartbeat")

    def beat_now(self) -> None:
        """Beat before the interval is over: an attempt may have lost its task."""
        if self._thread is not None:
            self._thread.call(self._must_beat.set)

    async def stop(self) -> None:
        """End the beats; the session is for its owner to close."""
        self._stopping = True
        self.beat_now()
        if self._thread is not None:
            await self._thread.wait_ended(self._lease_seconds)

    async def _run(self) -> None:
        shared = self._session.store
        store = shared.for_another_loop()
        try:
            is_open = store is shared
            while not self._stopping:
                is_open = is_open or await self._open(store)
                if is_open:
                    await self.beat_once(store)
                await self._wait_for_next_beat()
        finally:
            if store is not shared:
                await store.close()

    async def _open(self, store: Store) -> bool:
        """Whether the store could be reached; otherwise it is tried again at the next beat."""
        try:
            async with self._runtime.timeout(self._answer_seconds()):
                await store.open()
        except Exception as error:
            self._on_failure(error)
            return False
        return True

    async def _wait_for_next_beat(self) -> None:
        """Rest until the next beat is due, is asked for, or has new long steps to report."""
        longest = self._answer_seconds() if self.is_good else self._interval_seconds
        rested = 0.0
        while not self._must_beat.is_set() and self._long_steps() == self._reported:
            left = min(self._pace_seconds(), longest) - rested
            if left <= 0:
                break
            await self._runtime.wait(self._must_beat, min(left, self._look_seconds))
            rested += self._look_seconds
        self._must_beat.clear()

    def _long_steps(self) -> Steps:
        """The steps that take long enough for people to ask about them."""
        before = self._runtime.clock.now_us() - int(LONG_STEP_SECONDS * SECOND)
        return tuple(step for step in self._holder.held_work().doing if step[2] <= before)[:MOST_STEPS]

    async def beat_once(self, store: Store) -> None:
        """Renew the lease. A failure does not lose it; when it has run out, it is lost."""
        sent = self._runtime.clock.monotonic()
        try:
            async with self._runtime.timeout(self._answer_seconds()):
                reply = (await store.commit((self._command(),)))[0]
        except Exception as error:
            self._on_failure(error)
            return
        if isinstance(reply.refusal, NotFound):
            self._report(self._on_lost, self._session.name, "the session was given up by a supervisor")
        elif reply.refusal is not None:
            self._on_failure(reply.refusal)
        else:
            self._good_until = sent + self._lease_seconds
            if reply.stale:
                self._report(self._holder.on_stale, reply.stale)

    def _pace_seconds(self) -> float:
        """An idle worker beats less often, but always in time for another try within the lease."""
        if not self._holder.held_work().is_idle:
            return self._interval_seconds
        halfway = (self._interval_seconds + self._lease_seconds) / 2
        return min(IDLE_INTERVALS * self._interval_seconds, halfway)

    def _answer_seconds(self) -> float:
        return max(self._lease_seconds / LAST_TRY, self.seconds_left)

    def _on_failure(self, error: Exception) -> None:
        self.failures += 1
        log.warning("heartbeat of session %s failed: %r", self._session.name, error)
        if not self.is_good:
            self._report(self._on_lost, self._session.name, "the lease ran out before it could be renewed")

    def _report(self, call: Callable[..., None], *arguments: object) -> None:
        """Call the holder on its own event loop."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            log.debug("the worker's loop is closed")

    def _command(self) -> Heartbeat:
        held, self._reported = self._holder.held_work(), self._long_steps()
        return self._session.command(
            Heartbeat,
            session_id=self._session.name,
            lease=int(self._lease_seconds * SECOND),
            attempts=held.attempts,
            claiming=held.claims,
            doing=self._reported,
            tick_age=held.tick_age,
        )
