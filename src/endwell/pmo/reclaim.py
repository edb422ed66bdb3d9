"""Reclaim: take turns from attempts whose session's lease has lapsed, and bury those sessions.

Whom to take from is the store's answer alone (`expired_claims`); the door checks it again in the
commit. A supervisor that has itself been away waits before it takes anything: the workers may have
been unable to reach the store just as long.
"""

from __future__ import annotations

from endwell.model import commands as c
from endwell.runtime.base import Runtime
from endwell.store.contract import Store

PAGE = 200


class Reclaimer:
    """`run_once()` reclaims everything that has lapsed."""

    def __init__(self, store: Store, runtime: Runtime, *, namespace: str, actor: str) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._actor = actor
        self.reclaimed = 0

    async def run_once(self) -> int:
        """How many turns were taken back."""
        now = await self._store.now()
        count = 0
        while lapsed := await self._store.expired_claims(self._namespace, now, PAGE):
            commands = [self._reclaim(claim.task_id, claim.attempt_id, claim.session_id) for claim in lapsed]
            replies = await self._store.commit(commands)
            moved = sum(reply.refusal is None for reply in replies)
            count += moved
            if moved < len(lapsed):
                break  # somebody else was faster, or a lease was renewed meanwhile
        await self._bury(now)
        self.reclaimed += count
        return count

    async def _bury(self, now: int) -> None:
        for session_id in await self._store.lapsed_sessions(self._namespace, now, PAGE):
            bury = c.CloseSession(
                command_id=self._runtime.ids.new(),
                namespace=self._namespace,
                actor=self._actor,
                session_id=session_id,
                reason="lease_lapsed",
            )
            await self._store.commit((bury,))

    def _reclaim(self, task_id: str, attempt_id: str, session_id: str) -> c.Reclaim:
        return c.Reclaim(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            task_id=task_id,
            attempt_id=attempt_id,
            session_id=session_id,
        )
