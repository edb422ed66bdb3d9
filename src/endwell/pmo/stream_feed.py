"""Feeding the stream: what has a free slot is dispatched and put there, and put again if need be.

The dispatch is committed first. If the entry then gets lost, or the whole server forgets, the turn still
stands as dispatched in the store, and is put again when it is asked about; the store grants it once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from endwell.model.commands import DispatchNext
from endwell.queue.redis_streams.orchestrator import StreamOrchestrator
from endwell.runtime.base import Runtime
from endwell.store.contract import Store
from endwell.store.rows import Feeding, Offer

DISPATCH_LIMIT = 128
"""Turns offered in one commit, for each that a store can make at once: more would keep workers from a SQLite
file for so long that they wait."""
STANDING_LIMIT = 1000
AHEAD_SECONDS = 0.25
"""So much work may lie on the stream beyond the free slots; with slow tasks that is nothing."""
AHEAD_SLOTS = 4
"""And for each slot at most so many turns: workers go on with them until the next ones are offered."""
COUNTED_SECONDS = 1.0
"""For so long room that was counted is given away without another count: meanwhile turns only end."""
COUNT_AGAIN_SECONDS = 0.02
"""While turns lie ahead of the workers there is time to count for many that ended at once."""
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
        self._room = _Room()
        self._counted_at = -math.inf
        self.more: set[str] = set()
        """Agents that may have more ready tasks, for which there is room."""
        self.is_short = False
        """Whether some agent may have more ready tasks than there was room for."""
        self.dispatched = 0
        self.put_again = 0

    async def run_once(self, now: int | None = None) -> int:
        """Count who has room, then offer; how many turns. `now` by the store's clock, if just read."""
        found = await self._store.feeding(self._namespace, await self._store.now() if now is None else now)
        self._room, self._counted_at = _Room(found, self._ahead()), self._runtime.clock.monotonic()
        return await self._offer(found.ready)

    async def offer(self, agents: Collection[str]) -> bool:
        """Offer what these have ready in the room that was counted last. False if that is not enough."""
        is_old = self._runtime.clock.monotonic() - self._counted_at > COUNTED_SECONDS
        if is_old or not all(self._room.for_agent(agent) for agent in agents):
            return False
        await self._offer(agents)
        return True

    async def _offer(self, agents: Collection[str]) -> int:
        left, limits = self._room.copy(), dict[str, int]()
        for agent in agents:
            limits[agent] = min(left.for_agent(agent), DISPATCH_LIMIT * self._store.lines)
            left.take(agent, limits[agent])
        offers = await self._offered({agent: limit for agent, limit in limits.items() if limit > 0})
        counts = Counter(offer.task.agent for offer in offers)
        for agent, count in counts.items():
            self._room.take(agent, count)
        filled = [agent for agent, limit in limits.items() if counts[agent] == limit]
        self.more = {agent for agent in filled if self._room.for_agent(agent)}
        self.is_short = len(self.more) < len(filled)
        await self._put(offers)
        self._note_pace(len(offers))
        self.dispatched += len(offers)
        return len(offers)

    def seconds_to_count(self) -> float:
        """How long to wait for more room before it is counted again."""
        if not self._ahead():
            return 0.0
        return self._counted_at + COUNT_AGAIN_SECONDS - self._runtime.clock.monotonic()

    def rest(self) -> None:
        """Nothing is ready."""
        self.more, self.is_short = set(), False

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

    def __init__(self, found: Feeding | None = None, ahead: int = 0) -> None:
        self._free: dict[str, int] = {}
        self._serving: dict[str, list[str]] = {}
        if found is None:
            return
        for each in found.workers:
            share = min(ahead // len(found.workers), AHEAD_SLOTS * each.slots)
            self._free[each.session_id] = max(each.slots + share - each.held, 0)
            for agent in each.agents:
                self._serving.setdefault(agent, []).append(each.session_id)
        for agent, count in found.offered.items():
            self.take(agent, count)

    def copy(self) -> _Room:
        """The same room, to try something out."""
        other = _Room()
        other._free, other._serving = dict(self._free), self._serving
        return other

    def for_agent(self, agent: str) -> int:
        return sum(self._free[session] for session in self._serving.get(agent, ()))

    def take(self, agent: str, count: int) -> None:
        for session in self._serving.get(agent, ()):
            taken = min(self._free[session], count)
            self._free[session] -= taken
            count -= taken


def _key(offer: Offer) -> Key:
    return offer.task.turn_id or "", offer.task.epoch
