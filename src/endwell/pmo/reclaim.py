"""Reclaim: take turns from attempts whose session's lease has lapsed, and bury those sessions.

A supervisor that has itself been away waits before it takes anything (`store/reclaiming.py`): the workers
may have been unable to reach the store just as long. Where a stream carries the turns, it is first
left to whoever looks after that (`grace_seconds`), who can say which entry it was.
"""

from __future__ import annotations

from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.store.contract import Store
from endwell.store.reclaiming import reclaim_lapsed


class Reclaimer:
    """`run_once()` reclaims everything that has lapsed."""

    def __init__(
        self, store: Store, runtime: Runtime, *, namespace: str, actor: str, grace_seconds: float = 0.0
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._actor = actor
        self._grace = int(grace_seconds * SECOND)
        self.reclaimed = 0

    async def run_once(self) -> int:
        """How many turns were taken back."""
        count = await reclaim_lapsed(
            self._store, self._runtime, self._namespace, self._actor, grace=self._grace
        )
        self.reclaimed += count
        return count
