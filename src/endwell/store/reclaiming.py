"""Reclaiming: take turns from attempts whose session's lease has lapsed, and bury those sessions.

Supervisors and workers both do it. Whom to take from is the store's answer alone (`expired_claims`); the door
checks it again in the commit. Whoever has been away waits before it takes anything: the holders may have been
away just as long.
"""

from __future__ import annotations

from endwell.model import commands as c
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.runtime.clock import Clock
from endwell.store.contract import Store
from endwell.store.reads import LapsedClaim

PAGE = 200


class Absence:
    """Whether somebody who looks at regular intervals has missed some of them, and is patient since."""

    def __init__(self, clock: Clock, *, longest_seconds: float, patience_seconds: float) -> None:
        self._clock = clock
        self._longest = longest_seconds
        self._patience = patience_seconds
        self._last: tuple[float, int] | None = None
        self._patient_until = float("-inf")

    def look(self) -> float:
        """For how many seconds we were away; nothing if we were not."""
        away = self._seconds_since_last()
        if away <= self._longest:
            return 0.0
        self._patient_until = self._clock.monotonic() + self._patience
        return away

    @property
    def is_over(self) -> bool:
        """Whether the others have had the time to come back."""
        return self._clock.monotonic() >= self._patient_until

    def _seconds_since_last(self) -> float:
        """By both clocks: while a machine sleeps, only the wall clock goes on."""
        now, wall = self._clock.monotonic(), self._clock.now_us()
        before, wall_before = self._last or (now, wall)
        self._last = (now, wall)
        return max(now - before, (wall - wall_before) / SECOND)


async def reclaim_lapsed(
    store: Store, runtime: Runtime, namespace: str, actor: str, *, grace: int = 0
) -> int:
    """How many turns were taken back whose lease lapsed longer than `grace` ago."""
    now = await store.now() - grace
    count = 0
    while lapsed := await store.expired_claims(namespace, now, PAGE):
        commands = [_reclaim(claim, runtime.ids.new(), namespace, actor) for claim in lapsed]
        replies = await store.commit(commands)
        moved = sum(reply.refusal is None for reply in replies)
        count += moved
        if moved < len(lapsed):
            break  # somebody else was faster, or a lease was renewed meanwhile
    await _bury(store, runtime, namespace, actor)
    return count


async def _bury(store: Store, runtime: Runtime, namespace: str, actor: str) -> None:
    """At once: a session that lost a turn must not come back to life, and its worker must begin anew."""
    for session_id in await store.lapsed_sessions(namespace, await store.now(), PAGE):
        bury = c.CloseSession(
            command_id=runtime.ids.new(),
            namespace=namespace,
            actor=actor,
            session_id=session_id,
            reason="lease_lapsed",
        )
        await store.commit((bury,))


def _reclaim(claim: LapsedClaim, command_id: str, namespace: str, actor: str) -> c.Reclaim:
    return c.Reclaim(
        command_id=command_id,
        namespace=namespace,
        actor=actor,
        task_id=claim.task_id,
        attempt_id=claim.attempt_id,
        session_id=claim.session_id,
    )
