"""Dispatch: offer tasks that have been ready for a while to workers that have room for them.

Workers take ready tasks by themselves, at once. What is left here are tasks that nobody took although
somebody could: a lost ring, a worker that just arrived. Only as many are offered as live workers have
free slots, so that waiting in a long queue burns neither counter nor timeout.
"""

from __future__ import annotations

from endwell.model.commands import DispatchNext
from endwell.policy.limits import SECOND
from endwell.runtime.base import Runtime
from endwell.store.contract import Store


class Dispatcher:
    """`run_once()` offers what can be taken."""

    def __init__(
        self, store: Store, runtime: Runtime, *, namespace: str, actor: str, patience_seconds: float
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._namespace = namespace
        self._actor = actor
        self._patience = int(patience_seconds * SECOND)
        self.dispatched = 0

    async def run_once(self) -> int:
        """How many turns were offered."""
        now = await self._store.now()
        free = await self._free_slots(now)
        count = 0
        for agent, slots in free.items():
            since = await self._store.ready_since(self._namespace, agent, now)
            if since is None or since > now - self._patience:
                continue
            room = slots - await self._store.offered_count(self._namespace, agent)
            count += await self._offer(agent, room) if room > 0 else 0
        self.dispatched += count
        return count

    async def _free_slots(self, now: int) -> dict[str, int]:
        """For each agent, how many more turns its live workers could take."""
        load = await self._store.load_of_sessions(self._namespace)
        free: dict[str, int] = {}
        for session in await self._store.open_sessions(self._namespace):
            if session.kind == "worker" and session.lease_until > now:
                room = session.concurrency - load.get(session.id, 0)
                for agent in session.agents.split():
                    free[agent] = free.get(agent, 0) + max(room, 0)
        return free

    async def _offer(self, agent: str, limit: int) -> int:
        command = DispatchNext(
            command_id=self._runtime.ids.new(),
            namespace=self._namespace,
            actor=self._actor,
            agent=agent,
            limit=min(limit, 100),
        )
        return len((await self._store.one(command)).taken)
