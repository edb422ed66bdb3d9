"""The heartbeat: keeps the session's lease alive from a thread of its own.

A blocked event loop does not lose the lease. The lease is measured by the monotonic clock from the
moment a request was *sent*, so a slow store can only shorten it; once it has run out, the worker is
told to stop by itself, whether or not anybody has reclaimed its tasks yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from endwell.errors import NotFound
from endwell.model.commands import Heartbeat
from endwell.runtime.base import Beside, Runtime
from endwell.store.contract import Store
from endwell.turn.recorder import LOOK_SECONDS

log = logging.getLogger(__name__)
SECOND = 1_000_000
LOOKS = 3
"""Of slow heartbeats this many looks each are enough."""
IDLE_INTERVALS = 2
"""So many heartbeats apart are those of a worker that holds nothing, and so has nothing to lose."""
LAST_TRY = 20
"""A beat gets at least this part of a lease for its answer: a store that is merely slow is not lost."""
MOST_STEPS = 500
"""Of more steps at once the heartbeat tells only these."""


class HeldWork(msgspec.Struct, frozen=True):
    """What a heartbeat names: attempts held, claims whose answer the worker has not seen, steps under way."""

    attempts: tuple[tuple[str, str], ...] = ()
    claims: tuple[str, ...] = ()
    doing: tuple[tuple[str, str, int], ...] = ()
    tick_age: int | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing is held, and nothing asked for."""
        return not (self.attempts or self.claims or self.doing)


class HeartbeatLoop:
    """`named` says what the worker holds; `on_stale` hears what it must let go of, `on_lost` that all is."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        namespace: str,
        session_id: str,
        lease_seconds: float,
        interval_seconds: float,
        named: Callable[[], HeldWork],
        on_stale: Callable[[tuple[str, ...]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._session_id = session_id
        self._lease_seconds = lease_seconds
        self._interval_seconds = interval_seconds
        self._look_seconds = max(LOOK_SECONDS, interval_seconds / LOOKS)
        self._named = named
        self._on_stale = on_stale
        self._on_lost = on_lost
        self._good_until = runtime.clock.monotonic() + lease_seconds
        self._now_flag: asyncio.Event
        self._stopping = False
        self._beside: Beside | None = None
        self._told: tuple[tuple[str, str, int], ...] = ()
        self.failures = 0

    @property
    def is_good(self) -> bool:
        """Whether the lease still holds by this process's own clock."""
        return self.seconds_left > 0

    @property
    def seconds_left(self) -> float:
        """For how long the lease still holds by this process's own clock."""
        return self._good_until - self._runtime.clock.monotonic()

    def start(self) -> None:
        """Beat in a thread until `stop`."""
        self._now_flag = asyncio.Event()
        self._beside = self._runtime.start_loop(self._beat, "endwell-heartbeat")

    def beat_now(self) -> None:
        """Do not wait for the interval: something may have been taken from us."""
        if self._beside is not None:
            self._beside.call(self._now_flag.set)

    async def stop(self) -> None:
        """No further beat; the session is for its owner to close."""
        self._stopping = True
        self.beat_now()
        if self._beside is not None:
            await self._beside.wait_ended(self._lease_seconds)

    async def _beat(self) -> None:
        store = self._store.sibling()
        try:
            is_open = store is self._store
            while not self._stopping:
                is_open = is_open or await self._opened(store)
                if is_open:
                    await self.beat_once(store)
                await self._rest()
        finally:
            if store is not self._store:
                await store.close()

    async def _rest(self) -> None:
        """Until the next beat is due, somebody asks for one, or there is something new to tell."""
        longest = self._time_left() if self.is_good else self._interval_seconds
        rested = 0.0
        while not self._now_flag.is_set() and self._long() == self._told:
            left = min(self._pace_seconds(), longest) - rested
            if left <= 0:
                break
            await self._runtime.wait(self._now_flag, min(left, self._look_seconds))
            rested += self._look_seconds
        self._now_flag.clear()

    def _long(self) -> tuple[tuple[str, str, int], ...]:
        """The steps that take long enough for others to ask about them."""
        before = self._runtime.clock.now_us() - int(LOOK_SECONDS * SECOND)
        return tuple(step for step in self._named().doing if step[2] <= before)[:MOST_STEPS]

    async def _opened(self, store: Store) -> bool:
        """A store that cannot be reached is tried again at the next beat, as long as there is a lease."""
        try:
            async with self._runtime.timeout(self._time_left()):
                await store.open()
        except Exception as error:
            self._note_failure(error)
            return False
        return True

    async def beat_once(self, store: Store) -> None:
        """One renewal. A failed one is not yet a lost lease; a lease that ran out is."""
        sent = self._runtime.clock.monotonic()
        try:
            async with self._runtime.timeout(self._time_left()):
                reply = (await store.commit((self._command(),)))[0]
        except Exception as error:
            self._note_failure(error)
            return
        if isinstance(reply.refusal, NotFound):
            self._on_lost("the session was given up by a supervisor")
        elif reply.refusal is not None:
            self._note_failure(reply.refusal)
        else:
            self._good_until = sent + self._lease_seconds
            if reply.stale:
                self._on_stale(reply.stale)

    def _pace_seconds(self) -> float:
        """Whoever holds nothing beats less often; always in time for another try before the lease is over."""
        if not self._named().is_idle:
            return self._interval_seconds
        halfway = (self._interval_seconds + self._lease_seconds) / 2
        return min(IDLE_INTERVALS * self._interval_seconds, halfway)

    def _time_left(self) -> float:
        return max(self._lease_seconds / LAST_TRY, self._good_until - self._runtime.clock.monotonic())

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        log.warning("heartbeat of session %s failed: %r", self._session_id, error)
        if not self.is_good:
            self._on_lost("the lease ran out before it could be renewed")

    def _command(self) -> Heartbeat:
        named, self._told = self._named(), self._long()
        return Heartbeat(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._session_id,
            session_id=self._session_id,
            lease=int(self._lease_seconds * SECOND),
            attempts=named.attempts,
            claiming=named.claims,
            doing=self._told,
            tick_age=named.tick_age,
        )
