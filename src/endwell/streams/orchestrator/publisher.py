"""Feeding the stream: what has a free slot is put there, and put again if need be.

Most turns are put by their names alone (`stream_announced.py`), and cost the store a question. Turns with
slots or agent keys, and those that nobody took for a while, are dispatched first. If an entry gets lost, or
the whole server forgets, the task still waits in the store and is put again; the store grants it once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from endwell.machine.offers import offered_turn
from endwell.model.commands import DispatchNext
from endwell.runtime.base import Runtime
from endwell.runtime.recent import Recent
from endwell.store.contract import Store
from endwell.store.rows import Offer
from endwell.streams.commands import StreamOrchestrator
from endwell.streams.entries import Carried
from endwell.streams.orchestrator.announced import AnnouncedTurns
from endwell.streams.orchestrator.free_slots import FreeSlots
from endwell.streams.orchestrator.offer_entry import Key, carried

DISPATCH_LIMIT = 128
"""Turns offered in one commit, for each that a store can make at once: more would keep workers from a SQLite
file for so long that they wait."""
STANDING_LIMIT = 1000
AHEAD_SECONDS = 0.25
"""So much work may lie on the stream beyond the free slots; with slow tasks that is nothing."""
COUNTED_SECONDS = 1.0
"""For so long room that was counted is given away without another count: meanwhile turns only end."""
COUNT_AGAIN_SECONDS = 0.05
"""While turns lie ahead of the workers there is time to count for many that ended at once."""
FIRST_PASS_SECONDS = 0.05
LONGEST_PASS_SECONDS = 2.0


class Publisher:
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
        crash_limit: int,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._stream = stream
        self._namespace = namespace
        self._actor = actor
        self._again_seconds = again_seconds
        self._put_at: dict[Key, float] = {}
        self._passes: Counter[Key] = Counter()
        self._recent = Recent(runtime.clock)
        self._room = FreeSlots()
        self._announced = AnnouncedTurns(store, runtime.clock, namespace=namespace, crash_limit=crash_limit)
        self._counted_at = -math.inf
        self.more: set[str] = set()
        """Agents that may have more ready tasks, for which there is room."""
        self.short: set[str] = set()
        """Agents that may have more ready tasks than there was room for."""
        self.offered = 0
        self.put_again = 0

    async def run_once(self, now: int | None = None, ready: Collection[str] | None = None) -> int:
        """Count who has room, then offer; how many turns. `now` by the store's clock, if just read, and
        `ready`, the agents that have something to offer, if known.
        """
        await self._announced.settle()  # first, so that what is taken meanwhile is counted twice, not never
        now = await self._store.now() if now is None else now
        found = await self._store.feeding(self._namespace, now, None if ready is None else list(ready))
        self._room = FreeSlots(found, self._ahead(), self._announced.counts())
        self._counted_at = self._runtime.clock.monotonic()
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
        turns = await self._put_all({agent: limit for agent, limit in limits.items() if limit > 0})
        counts = Counter(turn.agent for turn in turns)
        for agent, count in counts.items():
            self._room.take(agent, count)
        filled = [agent for agent, limit in limits.items() if counts[agent] == limit]
        self.more = {agent for agent in filled if self._room.for_agent(agent)}
        self.short = (self.short - limits.keys()) | (set(filled) - self.more)
        self._recent.note(len(turns))
        self.offered += len(turns)
        return len(turns)

    async def _put_all(self, limits: dict[str, int]) -> list[Carried]:
        """As many turns of each agent as it has room for, by name where that will do."""
        named: list[Carried] = []
        others: dict[str, int] = {}
        for agent, limit in limits.items():
            found = await self._announced.next_of(agent, limit)
            if found is None:
                others[agent] = limit
            else:
                named += found
        await self._stream.put(named)
        self._announced.note(named)
        return named + await self._dispatched(others)

    def seconds_to_count(self) -> float:
        """How long to wait for more room before it is counted again."""
        if not self._ahead():
            return 0.0
        return self._counted_at + COUNT_AGAIN_SECONDS - self._runtime.clock.monotonic()

    def rest(self) -> None:
        """Nothing is ready."""
        self.more, self.short = set(), set()

    def _ahead(self) -> int:
        """How many turns may wait on the stream for a slot: as many as this pace begins in a moment."""
        return self._recent.within(AHEAD_SECONDS)

    async def heal(self) -> int:
        """Put again what has been offered for a while and nobody took; how many."""
        now = self._runtime.clock.monotonic()
        standing: list[Carried] = []
        for agent in await self._store.offered_counts(self._namespace):
            standing += _standing(await self._store.offers_standing(self._namespace, agent, STANDING_LIMIT))
        keys = {turn.key for turn in standing}
        self._put_at = {key: at for key, at in self._put_at.items() if key in keys}
        on_offer = keys | self._announced.keys()
        self._passes = Counter({key: n for key, n in self._passes.items() if key in on_offer})
        missing = [turn for turn in standing if now - self._put_at.get(turn.key, -1e9) >= self._again_seconds]
        await self._put(missing)
        await self._announced.settle()
        again = missing + await self._dispatched(self._announced.give_up(self._again_seconds))
        self.put_again += len(again)
        return len(again)

    def forgot(self) -> None:
        """The server has nothing any more: whatever stands is to be put again at once."""
        self._put_at.clear()
        self._announced.forget()

    async def passed(self, task_id: str, key: Key) -> None:
        """A worker does not serve it: put it again, after a while that grows."""
        pause = min(FIRST_PASS_SECONDS * 2 ** self._passes[key], LONGEST_PASS_SECONDS)
        self._passes[key] += 1
        await self._runtime.sleep(pause)
        task = await self._store.find_task(self._namespace, task_id)
        turn = None if task is None else offered_turn(task)
        if task is not None and turn is not None and turn.key == key:
            card = await self._store.card(self._namespace, task.payload_card)
            await self._put((carried(task, turn, card.content),))

    async def _dispatched(self, limits: Mapping[str, int]) -> list[Carried]:
        """Turns of these agents that now stand as dispatched; what was announced before is there already."""
        turns = _standing(await self._offered(limits))
        now = self._runtime.clock.monotonic()
        there = [turn.key for turn in turns if turn.key in self._announced]
        self._announced.drop(there)
        self._put_at |= dict.fromkeys(there, now)
        await self._put([turn for turn in turns if turn.key not in set(there)])
        return turns

    async def _offered(self, limits: Mapping[str, int]) -> list[Offer]:
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

    async def _put(self, turns: Sequence[Carried]) -> None:
        """If the server does not take them, they stay unknown here and are put by the next `heal`."""
        await self._stream.put(turns)
        now = self._runtime.clock.monotonic()
        self._put_at |= {turn.key: now for turn in turns}


def _standing(offers: Sequence[Offer]) -> list[Carried]:
    """Turns that were dispatched."""
    return [
        carried(offer.task, turn, offer.payload)
        for offer in offers
        if (turn := offered_turn(offer.task)) is not None
    ]
