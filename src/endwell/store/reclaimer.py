"""Takes turns back from attempts whose session's lease has lapsed, and closes those sessions.

PMOs and workers both do it. The store alone says which turns to take (`expired_claims`); the door checks it
again in the commit. A supervisor that could not reach the store waits before it takes anything: the holders
may have been unable to reach it just as long. `policy/guard.py` decides what a reclaim costs the task, from
the evidence collected here.
"""

from __future__ import annotations

from endwell.model import commands as c
from endwell.model.moments import SECOND
from endwell.model.session import Session
from endwell.policy.limits import LATE_INTERVALS
from endwell.runtime.base import Runtime
from endwell.runtime.clock import Clock
from endwell.settings.sections import WorkerSettings
from endwell.store.actor import Actor
from endwell.store.reads.tasks import LapsedClaim

PAGE = 200
SHORTEST_ABSENCE = 1.5
"""Intervals between two answers of the store that never count as an absence."""
DECIDED_TOO_LATE = "decided_too_late"
"""The refusal of a reclaim that waited so long for the store that its evidence is out of date."""


class Absence:
    """Notes when a supervisor that asks the store at regular intervals went without an answer for too long.

    Only answers count: while every question fails, the supervisor is as blind as a frozen one. Both
    clocks are read, because the monotonic clock may stand still while a machine sleeps.
    """

    def __init__(self, clock: Clock, *, interval_seconds: float, worker: WorkerSettings) -> None:
        self._clock = clock
        # A gap that is not noticed must be too short to cost a live worker its lease.
        unnoticed = min(LATE_INTERVALS * interval_seconds, worker.lease_seconds - worker.heartbeat_seconds)
        self._longest = max(SHORTEST_ABSENCE * interval_seconds, unnoticed)
        self._patience = worker.heartbeat_seconds
        self._last: tuple[float, int] | None = None
        self._patient_until = float("-inf")
        self.since: int | None = None
        """Since when, by the store's clock, the store has on_answer without such a gap."""

    def on_answer(self, now: int) -> float:
        """Note an answer of the store, and its time; return how long it was away, if that was too long."""
        away = self._seconds_since_last()
        self._last = (self._clock.monotonic(), self._clock.now_us())
        if self.since is None:
            self.since = now
        if away <= self._longest:
            return 0.0
        self.since = now
        self._patient_until = self._clock.monotonic() + self._patience
        return away

    @property
    def longest_us(self) -> int:
        """The longest time between two answers that does not count as an absence, in microseconds."""
        return int(self._longest * SECOND)

    @property
    def is_over(self) -> bool:
        """Whether the holders have had time to come back."""
        return self._clock.monotonic() >= self._patient_until

    @property
    def is_blind(self) -> bool:
        """Whether nothing may be reclaimed now: the last answer is too old, or the first one too new."""
        return self._seconds_since_last() > self._longest or not self.is_over

    def _seconds_since_last(self) -> float:
        now, wall = self._clock.monotonic(), self._clock.now_us()
        before, wall_before = self._last or (now, wall)
        return max(now - before, (wall - wall_before) / SECOND)


class Reclaimer:
    """Takes back turns whose lease lapsed longer than `grace_seconds` ago, and closes their sessions."""

    def __init__(
        self, actor: Actor, runtime: Runtime, absence: Absence, *, grace_seconds: float = 0.0
    ) -> None:
        self._actor = actor
        self._runtime = runtime
        self._absence = absence
        self._grace = int(grace_seconds * SECOND)
        self.reclaimed = 0

    async def run_once(self, seen_at: int | None = None) -> int:
        """Return how many turns were taken back. `seen_at`: the store's time when it last on_answer."""
        store, namespace = self._actor.store, self._actor.namespace
        now = await store.now() if seen_at is None else seen_at
        count, is_late = 0, False
        while not is_late and (lapsed := await store.expired_claims(namespace, now - self._grace, PAGE)):
            replies = await store.commit([await self._reclaim(claim, now) for claim in lapsed])
            moved = sum(reply.refusal is None for reply in replies)
            count += moved
            is_late = any(r.refusal is not None and r.refusal.code == DECIDED_TOO_LATE for r in replies)
            if moved < len(lapsed):
                break  # another supervisor was faster, or a lease has been renewed
        if not is_late:
            await self._close_lapsed()
        self.reclaimed += count
        return count

    async def _close_lapsed(self) -> None:
        """Close them at once: a session that lost a turn must not be renewed; its worker opens a new one."""
        store, namespace = self._actor.store, self._actor.namespace
        before = await store.now() - self._grace
        for session_id in await store.lapsed_sessions(namespace, before, PAGE):
            close = self._actor.command(c.CloseSession, session_id=session_id, reason="lease_lapsed")
            await store.commit((close,))

    async def _reclaim(self, claim: LapsedClaim, now: int) -> c.Reclaim:
        session = await self._actor.store.session(self._actor.namespace, claim.session_id)
        return self._actor.command(
            c.Reclaim,
            task_id=claim.task_id,
            attempt_id=claim.attempt_id,
            session_id=claim.session_id,
            evidence=evidence_about(session, self._runtime, self._absence, now),
        )


def evidence_about(
    session: Session | None, runtime: Runtime, absence: Absence | None, now: int
) -> c.HolderEvidence:
    """Collect what this process knows about the holder of a lapsed session."""
    is_alive = None
    if session is not None and session.pid > 0 and session.host == runtime.host_name():
        is_alive = runtime.is_same_process(session.pid, session.process)
    return c.HolderEvidence(
        holder_is_alive=is_alive,
        watched_since=None if absence is None else absence.since,
        seen_at=now,
        longest_gap=None if absence is None else absence.longest_us,
    )
