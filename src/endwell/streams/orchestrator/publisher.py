"""Publishes offers: decides which turns go on the stream next, and when to look again.

An offer is *ready* when its task may run, *published* when its entry is on the stream, *dispatched* when the
store says so, and *claimed* when a worker holds it. Most offers are published first and dispatched together
with their claim (`early_offers.py`). Those that need a slot, an agent key or care are dispatched first. If an
entry is lost, or the server loses all of them, the task is still in the store and its offer is published
again; the store grants it once.

To find ready offers the publisher asks the store at three kinds of moment. A ring names an agent whose ready
turns are published in the room that was counted last. When turns have ended while others wait for room, the
room is counted again. And now and then a look finds what no ring announced.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from endwell.doorbell.contract import EVERYTHING, Doorbell
from endwell.machine.claiming import offered_turn
from endwell.model.commands import DispatchNext
from endwell.model.moments import SECOND
from endwell.runtime.base import Runtime
from endwell.runtime.recent import Recent
from endwell.settings import Settings
from endwell.store.actor import Actor
from endwell.store.probe import NOW, CachedProbe, Probe, ProbeResult
from endwell.store.rows import Offer
from endwell.streams.entries import OfferEntry, OfferKey
from endwell.streams.orchestrator.early_offers import EarlyOffers
from endwell.streams.orchestrator.free_slots import FreeSlots
from endwell.streams.task_streams import TaskStreams

DISPATCH_LIMIT = 128
"""Most offers in one commit, for each commit that the store can make at once: with more, workers would wait
too long for a SQLite file."""
UNCLAIMED_LIMIT = 1000
AHEAD_SECONDS = 0.25
"""How many seconds of work may be on the stream beyond the free slots; with slow tasks that is none."""
COUNT_LASTS_SECONDS = 1.0
"""How long room that was counted is given away without counting again: until then, turns only end."""
COUNT_AGAIN_SECONDS = 0.05
"""Shortest time between two counts while offers lie ahead: one count for many turns that end."""
LOOK_SOON_SECONDS = 0.05
"""Seconds until the look after a ring: some turns of the agent may be ready a little later."""
LONGEST_REST_SECONDS = 4.0
"""Longest time between two looks; a lost lead is noticed then, too."""
FIRST_PASS_SECONDS = 0.05
LONGEST_PASS_SECONDS = 2.0


class OfferPublisher:
    """`run_once` publishes what is ready and fits; `republish_unclaimed` repeats what may have been lost."""

    def __init__(
        self, actor: Actor, bell: Doorbell, runtime: Runtime, settings: Settings, streams: TaskStreams
    ) -> None:
        self._actor = actor
        self._store = actor.store
        self._namespace = actor.namespace
        self._bell = bell
        self._runtime = runtime
        self._worker_settings = settings.worker
        self._again_seconds = settings.pmo.dispatched_retry_seconds or settings.queue.RECLAIM_INTERVAL_S
        self._streams = streams
        self._early = EarlyOffers(self._store, runtime.clock, self._namespace, settings.pmo.crash_limit)
        # One statement for both questions, and none while the store has not changed: most looks find nothing.
        self._probe = CachedProbe(
            self._store,
            Probe("long_ready", (self._namespace, NOW, 0)),
            Probe("next_start", (self._namespace, NOW), is_value=True),
            due="next_start",
        )
        self._published_at: dict[OfferKey, float] = {}
        self._passes: Counter[OfferKey] = Counter()
        self._recent = Recent(runtime.clock)
        self._room = FreeSlots()
        self._counted_at = -math.inf
        self._look_at = -math.inf
        self._looked_at = (0, 0.0)
        self._has_ended = False
        self._with_more: set[str] = set()
        self._short: set[str] = set()
        self.published = 0
        self.republished = 0

    async def run_once(self, now: float, rung: Collection[str]) -> float:
        """Publish what is ready and fits; returns when to run again, unless the bell rings before.

        `now`: by the monotonic clock. `rung`: the topics that were rung since the last run.
        """
        agents = self._agents_of(rung) | self._with_more
        self._with_more = set()
        self._has_ended = self._has_ended or f"ended:{self._namespace}" in rung
        if now >= self._look_at or EVERYTHING in rung:
            await self._look_everywhere()
        elif agents and await self._publish_in_counted_room(agents):
            self._look_at = min(self._look_at, self._runtime.clock.monotonic() + LOOK_SOON_SECONDS)
        elif self._is_worth_counting:
            self._short |= agents
            if now >= self._count_at:
                await self._count_again()
        elif agents:
            await self._look_everywhere()
        return self._next_run()

    def _agents_of(self, topics: Collection[str]) -> set[str]:
        prefix = f"work:{self._namespace}:"
        return {topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix)}

    def _next_run(self) -> float:
        if self._with_more:
            return -math.inf
        return min(self._look_at, self._count_at) if self._is_worth_counting else self._look_at

    @property
    def _is_worth_counting(self) -> bool:
        """Whether offers wait for room, and turns have ended since room was counted."""
        return bool(self._short) and self._has_ended

    @property
    def _count_at(self) -> float:
        return self._counted_at + COUNT_AGAIN_SECONDS if self._offers_ahead() else -math.inf

    async def _look_everywhere(self) -> None:
        """Publish what any agent has ready, and plan the next look."""
        self._has_ended = False
        found = await self._probe.ask()
        self._looked_at = found.now, self._runtime.clock.monotonic()
        if found["long_ready"]:
            await self.publish_ready(found.now)
        else:
            self._with_more, self._short = set(), set()
        self._look_at = self._runtime.clock.monotonic() + self._rest_seconds(found)

    def _rest_seconds(self, found: ProbeResult) -> float:
        """Until the next start of a task, or a look for what no ring announced."""
        is_rung, is_free = self._bell.health().connected, self._store.has_stamps
        rest = self._worker_settings.pace_seconds(is_free=is_free, is_rung=is_rung)
        start = found["next_start"]
        until_start = math.inf if start is None else (start - found.now) / SECOND
        return max(0.0, min(rest, until_start, LONGEST_REST_SECONDS))

    async def _count_again(self) -> None:
        """Publish for the agents that wait for room."""
        self._has_ended = False
        now, at = self._looked_at
        passed = int((self._runtime.clock.monotonic() - at) * SECOND)
        await self.publish_ready(now + passed, self._short)

    async def publish_ready(self, now: int | None = None, agents: Collection[str] | None = None) -> int:
        """Count the free slots, then publish; how many offers.

        `now`: the store's time, if it was just read. `agents`: those with ready turns, if known.
        """
        await self._early.forget_claimed()  # before counting: a claim in between then counts twice, not never
        now = await self._store.now() if now is None else now
        found = await self._store.stream_demand(
            self._namespace, now, None if agents is None else list(agents)
        )
        self._room = FreeSlots(found, self._offers_ahead(), self._early.count_by_agent())
        self._counted_at = self._runtime.clock.monotonic()
        return await self._publish(found.ready)

    async def _publish_in_counted_room(self, agents: Collection[str]) -> bool:
        """Publish without counting; False if the count is old, or has no room for one of the agents."""
        is_old = self._runtime.clock.monotonic() - self._counted_at > COUNT_LASTS_SECONDS
        if is_old or not all(self._room.for_agent(agent) for agent in agents):
            return False
        await self._publish(agents)
        return True

    async def _publish(self, agents: Collection[str]) -> int:
        left, limits = self._room.copy(), dict[str, int]()
        for agent in agents:
            limits[agent] = min(left.for_agent(agent), DISPATCH_LIMIT * self._store.parallel_commits)
            left.take(agent, limits[agent])
        offers = await self._publish_each({agent: limit for agent, limit in limits.items() if limit > 0})
        counts = Counter(offer.agent for offer in offers)
        for agent, count in counts.items():
            self._room.take(agent, count)
        filled = [agent for agent, limit in limits.items() if counts[agent] == limit]
        self._with_more = {agent for agent in filled if self._room.for_agent(agent)}
        self._short = (self._short - limits.keys()) | (set(filled) - self._with_more)
        self._recent.add(len(offers))
        self.published += len(offers)
        return len(offers)

    async def _publish_each(self, limits: Mapping[str, int]) -> list[OfferEntry]:
        """Publish at most as many offers of each agent as it has room for."""
        early: list[OfferEntry] = []
        to_dispatch: dict[str, int] = {}
        for agent, limit in limits.items():
            found = await self._early.find(agent, limit)
            if found is None:
                to_dispatch[agent] = limit
            else:
                early += found
        await self._streams.publish_offers(early)
        self._early.record(early)
        return early + await self._dispatch_and_publish(to_dispatch)

    def _offers_ahead(self) -> int:
        """How many offers may wait on the stream for a slot: as many as start in a moment at this pace."""
        return self._recent.expected_within(AHEAD_SECONDS)

    async def republish_unclaimed(self) -> int:
        """Publish again the offers that were not claimed for a while; how many."""
        now = self._runtime.clock.monotonic()
        dispatched: list[OfferEntry] = []
        demand = await self._store.stream_demand(self._namespace, await self._store.now(), ())
        for agent in demand.dispatched:
            found = await self._store.dispatched_offers(self._namespace, agent, UNCLAIMED_LIMIT)
            dispatched += _entries_of(found)
        keys = {offer.key for offer in dispatched}
        self._published_at = {key: at for key, at in self._published_at.items() if key in keys}
        unclaimed = keys | self._early.keys()
        self._passes = Counter({key: count for key, count in self._passes.items() if key in unclaimed})
        lost = [
            offer
            for offer in dispatched
            if now - self._published_at.get(offer.key, -math.inf) >= self._again_seconds
        ]
        await self._publish_dispatched(lost)
        await self._early.forget_claimed()
        again = lost + await self._dispatch_and_publish(self._early.forget_expired(self._again_seconds))
        self.republished += len(again)
        return len(again)

    def forget_published(self) -> None:
        """The server has lost its entries: publish every offer again at the next run."""
        self._published_at.clear()
        self._early.clear()
        self._look_at = -math.inf

    async def republish_passed(self, task_id: str, key: OfferKey) -> None:
        """Publish an offer again that a worker does not serve, after a pause that grows each time."""
        pause = min(FIRST_PASS_SECONDS * 2 ** self._passes[key], LONGEST_PASS_SECONDS)
        self._passes[key] += 1
        await self._runtime.sleep(pause)
        task = await self._store.find_task(self._namespace, task_id)
        turn = None if task is None else offered_turn(task)
        if task is not None and turn is not None and turn.key == key:
            card = await self._store.card(self._namespace, task.payload_card)
            await self._publish_dispatched((OfferEntry.from_task(task, turn, card.content),))

    async def _dispatch_and_publish(self, limits: Mapping[str, int]) -> list[OfferEntry]:
        """Dispatch ready turns in the store, then publish those that are not on the stream already."""
        offers = _entries_of(await self._dispatch(limits))
        early = {offer.key for offer in offers if offer.key in self._early}
        self._early.drop(early)
        self._published_at |= dict.fromkeys(early, self._runtime.clock.monotonic())
        await self._publish_dispatched([offer for offer in offers if offer.key not in early])
        return offers

    async def _dispatch(self, limits: Mapping[str, int]) -> list[Offer]:
        """Dispatch ready turns of all agents in one commit."""
        commands = [
            self._actor.command(
                DispatchNext, agent=agent, limit=limit, may_offer_suspect=True, is_streamed=True
            )
            for agent, limit in limits.items()
        ]
        replies = await self._actor.commit(commands) if commands else []
        for reply in replies:
            if reply.refusal is not None:
                raise reply.refusal
        return [offer for reply in replies for offer in reply.taken]

    async def _publish_dispatched(self, offers: Sequence[OfferEntry]) -> None:
        """If that fails, `republish_unclaimed` does it: an offer without a time of publishing is overdue."""
        await self._streams.publish_offers(offers)
        self._published_at |= dict.fromkeys((offer.key for offer in offers), self._runtime.clock.monotonic())


def _entries_of(offers: Sequence[Offer]) -> list[OfferEntry]:
    return [
        OfferEntry.from_task(offer.task, turn, offer.payload)
        for offer in offers
        if (turn := offered_turn(offer.task)) is not None
    ]
