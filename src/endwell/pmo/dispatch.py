"""Dispatch: offer ready tasks that no worker has claimed to workers with free slots.

Workers claim ready tasks by themselves. A task that stays ready lost its ring, or its worker has just
started. The PMO offers only as many tasks as live workers have free slots, so that a task in a long
queue uses up neither its dispatch count nor its dispatch timeout.
"""

from __future__ import annotations

from endwell.model.commands import DispatchNext
from endwell.model.moments import SECOND
from endwell.store.actor import Actor

MOST_OFFERS = 100
"""Offers in one commit; the next tick offers more."""


class Dispatcher:
    """Offers ready tasks to workers with free slots."""

    def __init__(self, actor: Actor, *, patience_seconds: float) -> None:
        self._actor = actor
        self._store = actor.store
        self._namespace = actor.namespace
        self._patience = int(patience_seconds * SECOND)

    async def run_once(self) -> int:
        """Offer what can be taken; return how many tasks that were."""
        now = await self._store.now()
        count = 0
        for agent, slots in (await self._free_slots(now)).items():
            since = await self._store.ready_since(self._namespace, agent, now)
            if since is None or since > now - self._patience:
                continue
            room = slots - await self._store.offered_count(self._namespace, agent)
            if room > 0:
                reply = await self._actor.send(DispatchNext, agent=agent, limit=min(room, MOST_OFFERS))
                count += len(reply.taken)
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
