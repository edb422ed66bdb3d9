"""Turns that lie on the stream by their names alone, without a dispatch in the store.

A turn's name (its turn and epoch) follows from its task's row, so an entry may be put before anything is
written: whoever takes it claims a queued task by that name, in one commit with its dispatch, as a worker
does that takes from the store itself. What is remembered here is a hint and may be lost with the process: the
task is queued, and the next orchestrator announces it again under the same name, which is granted once.

A claim must take no slot and no agent key for that, and its task must not be close to its crash limit: such
turns are dispatched first, and so is what was announced and not taken for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from endwell.machine.offers import next_turn
from endwell.policy.guard import is_suspect
from endwell.runtime.clock import Clock
from endwell.store.contract import Store
from endwell.store.stream_reads import START, QueuePosition, ReadyTurn
from endwell.streams.entries import Carried
from endwell.streams.orchestrator.offer_entry import Key, carried

FROM_START_SECONDS = 1.0
"""What comes before the last turn that was announced (one that was given back, say) waits at most so long."""


class _Put(NamedTuple):
    task_id: str
    agent: str
    at: float


class AnnouncedTurns:
    """`next_of()` finds what to announce, `note()` remembers it, `settle()` forgets what was taken."""

    def __init__(self, store: Store, clock: Clock, *, namespace: str, crash_limit: int) -> None:
        self._store = store
        self._clock = clock
        self._namespace = namespace
        self._crash_limit = crash_limit
        self._put: dict[Key, _Put] = {}
        self._places: dict[str, tuple[QueuePosition, float]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._put

    def keys(self) -> Set[Key]:
        """What lies there, as far as is known."""
        return self._put.keys()

    def counts(self) -> Counter[str]:
        """How many turns of each agent lie there, as far as is known."""
        return Counter(put.agent for put in self._put.values())

    async def next_of(self, agent: str, limit: int) -> list[Carried] | None:
        """Turns of an agent that are not there yet, in the order to be taken. None: they need a dispatch."""
        after = self._place(agent)
        found = await self._ready(agent, limit, after)
        if after is not START and len(found) < limit:
            found = await self._ready(agent, limit, START)
        if not found or not all(map(self._is_plain, found)):
            return None
        ready = [turn for turn in found if next_turn(turn).key not in self._put][:limit]
        self._reach(agent, ready[-1].place if len(ready) == limit else START)
        return [carried(turn, next_turn(turn), turn.payload) for turn in ready]

    async def _ready(self, agent: str, limit: int, after: QueuePosition) -> list[ReadyTurn]:
        there = self.counts()[agent] if after is START else 0
        return await self._store.ready_turns(self._namespace, agent, limit + there, after)

    def _is_plain(self, turn: ReadyTurn) -> bool:
        is_free = turn.slots is None and turn.agent_key is None
        return is_free and not is_suspect(turn.crash_count, self._crash_limit)

    def _place(self, agent: str) -> QueuePosition:
        place, since = self._places.get(agent, (START, 0.0))
        return place if self._clock.monotonic() - since <= FROM_START_SECONDS else START

    def _reach(self, agent: str, place: QueuePosition) -> None:
        """From there on the next time; `since` stays, so that now and then one begins at the start."""
        was, since = self._places.get(agent, (START, 0.0))
        now = self._clock.monotonic()
        is_due = was is START or now - since > FROM_START_SECONDS
        self._places[agent] = (place, now if is_due else since)

    def note(self, turns: Sequence[Carried]) -> None:
        """They are on the stream now."""
        now = self._clock.monotonic()
        self._put |= {turn.key: _Put(turn.task_id, turn.agent, now) for turn in turns}

    async def settle(self) -> None:
        """Forget those that are not waiting any more; what is announced meanwhile is kept."""
        asked = {key: put.task_id for key, put in self._put.items()}
        if asked:
            queued = await self._store.epochs_of_queued(self._namespace, list(asked.values()))
            self.drop([key for key, task_id in asked.items() if queued.get(task_id) != key[1] - 1])

    def drop(self, keys: Sequence[Key]) -> None:
        """These are not only announced any more."""
        for key in keys:
            self._put.pop(key, None)

    def give_up(self, after_seconds: float) -> Counter[str]:
        """Forget those that lay there for so long; how many of each agent."""
        before = self._clock.monotonic() - after_seconds
        late = {key: put for key, put in self._put.items() if put.at <= before}
        self.drop(list(late))
        return Counter(put.agent for put in late.values())

    def forget(self) -> None:
        """The server has nothing any more."""
        self._put.clear()
        self._places.clear()
