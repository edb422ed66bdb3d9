"""Feeding the stream: what has a free slot is dispatched and put there, and put again if need be.

The dispatch is committed first. If the entry then gets lost, or the whole server forgets, the turn still
stands as dispatched in the store, and is put again when it is asked about; the store grants it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from endwell.model.commands import DispatchNext
from endwell.queue.redis_streams.orchestrator import StreamOrchestrator
from endwell.runtime.base import Runtime
from endwell.store.contract import Store
from endwell.store.rows import Offer, Serving

DISPATCH_LIMIT = 128
"""As many as share a transaction; more keep workers from a SQLite file for so long that they wait."""
STANDING_LIMIT = 1000
AHEAD_SECONDS = 0.25
"""So much work may lie on the stream beyond the free slots; with slow tasks that is nothing."""
AHEAD_SLOTS = 4
"""And for each slot at most so many turns: workers go on with them until the next ones are offered."""
FIRST_PASS_SECONDS = 0.05
LONGEST_PASS_SECONDS = 2.0

Key = tuple[str, int]
"""A turn and its epoch: what an entry names."""


class Feed:
    """`run_once()` offers what can be taken; `heal()` puts again what nobody took."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        stream: StreamOrchestrator,
        *,
        namespace: str,
        actor: str,
        again_seconds: float,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._stream = stream
        self._namespace = namespace
        self._actor = actor
        self._again_seconds = again_seconds
        self._put_at: dict[Key, float] = {}
        self._passes: Counter[Key] = Counter()
        self._recent: list[tuple[float, int]] = []
        self.dispatched = 0
        self.put_again = 0

    async def run_once(self, now: int | None = None) -> int:
        """How many turns were offered; `now` by the store's clock, if that was read just before."""
        found = await self._store.feeding(self._namespace, await self._store.now() if now is None else now)
        room = _Room(found.workers, self._ahead())
        for agent, count in found.offered.items():
            room.take(agent, count)
        limits: dict[str, int] = {}
        for agent in found.ready:
            limits[agent] = min(room.for_agent(agent), DISPATCH_LIMIT)
            room.take(agent, limits[agent])
        offers = await self._offered({agent: limit for agent, limit in limits.items() if limit > 0})
        await self._put(offers)
        self._note_pace(len(offers))
        self.dispatched += len(offers)
        return len(offers)

    def _ahead(self) -> int:
        """How many turns may wait on the stream for a slot: as many as this pace begins in a moment."""
        now = self._runtime.clock.monotonic()
        self._recent = [(at, count) for at, count in self._recent if now - at < 1.0]
        return int(AHEAD_SECONDS * sum(count for _, count in self._recent))

    def _note_pace(self, count: int) -> None:
        if count:
            self._recent.append((self._runtime.clock.monotonic(), count))

    async def heal(self) -> int:
        """Put again what has been offered for a while and nobody took; how many."""
        now = self._runtime.clock.monotonic()
        standing: list[Offer] = []
        for agent in await self._store.offered_counts(self._namespace):
            standing += await self._store.offers_standing(self._namespace, agent, STANDING_LIMIT)
        keys = {_key(offer) for offer in standing}
        self._put_at = {key: at for key, at in self._put_at.items() if key in keys}
        self._passes = Counter({key: n for key, n in self._passes.items() if key in keys})
        missing = [o for o in standing if now - self._put_at.get(_key(o), -1e9) >= self._again_seconds]
        await self._put(missing)
        self.put_again += len(missing)
        return len(missing)

    def forgot(self) -> None:
        """The server has nothing any more: whatever stands is to be put again at once."""
        self._put_at.clear()

    async def passed(self, task_id: str, key: Key) -> None:
        """A worker does not serve it: put it again, after a while that grows."""
        pause = min(FIRST_PASS_SECONDS * 2 ** self._passes[key], LONGEST_PASS_SECONDS)
        self._passes[key] += 1
        await self._runtime.sleep(pause)
        task = await self._store.find_task(self._namespace, task_id)
        if task is not None and task.status == "dispatched" and (task.turn_id, task.epoch) == key:
            card = await self._store.card(self._namespace, task.payload_card)
            await self._put((Offer(task, card.content),))

    async def _offered(self, limits: dict[str, int]) -> list[Offer]:
        """In one commit for all agents."""
        commands = [
            DispatchNext(
                command_id=self._runtime.ids.new(),
                namespace=self._namespace,
                actor=self._actor,
                agent=agent,
                limit=limit,
                may_offer_suspect=True,
                is_carried=True,
            )
            for agent, limit in limits.items()
        ]
        replies = await self._store.commit(commands) if commands else []
        for reply in replies:
            if reply.refusal is not None:
                raise reply.refusal
        return [offer for reply in replies for offer in reply.taken]

    async def _put(self, offers: Sequence[Offer]) -> None:
        """If the server does not take them, they stay unknown here and are put by the next `heal`."""
        await self._stream.put(offers)
        now = self._runtime.clock.monotonic()
        self._put_at |= {_key(offer): now for offer in offers}


class _Room:
    """The free slots of live workers. One that serves several agents has its slots once, not for each."""

    def __init__(self, workers: Sequence[Serving], ahead: int) -> None:
        self._free: dict[str, int] = {}
        self._serving: dict[str, list[str]] = {}
        for each in workers:
            share = min(ahead // len(workers), AHEAD_SLOTS * each.slots)
            self._free[each.session_id] = max(each.slots + share - each.held, 0)
            for agent in each.agents:
                self._serving.setdefault(agent, []).append(each.session_id)

    def for_agent(self, agent: str) -> int:
        return sum(self._free[session] for session in self._serving.get(agent, ()))

    def take(self, agent: str, count: int) -> None:
        for session in self._serving.get(agent, ()):
            taken = min(self._free[session], count)
            self._free[session] -= taken
            count -= taken


def _key(offer: Offer) -> Key:
    return offer.task.turn_id or "", offer.task.epoch
