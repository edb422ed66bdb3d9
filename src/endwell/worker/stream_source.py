"""Turns that a stream brings; while the stream is away, the worker claims from the store by itself.

A delivery grants nothing: it is claimed in the store before its turn begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from endwell.doorbell.contract import Doorbell
from endwell.errors import StaleAttempt, StoreError
from endwell.model import commands as c
from endwell.model import content
from endwell.store.actor import Actor
from endwell.store.contract import Store
from endwell.store.rows import Offer, Reply
from endwell.streams.entries import Delivery
from endwell.streams.intake import StreamIntake
from endwell.turn.agents import Agent
from endwell.worker.session import WorkerSession
from endwell.worker.store_source import Capacity, PendingClaim, StoreSource
from endwell.worker.watchdog import WorkerWatchdog
from endwell.worker.work_probe import WorkProbe

_STILL_OFFERED = ("too_early", "key_is_held", "clock_is_due")
"""Refusals after which the offer stands: its entry stays pending, and the orchestrator offers it again."""


class StreamSource(StoreSource):
    """A claim asks for each turn that was delivered."""

    def __init__(
        self,
        intake: StreamIntake,
        actor: Actor,
        agents: Mapping[str, Agent],
        session: WorkerSession,
        probe: WorkProbe,
        watchdog: WorkerWatchdog,
        bell: Doorbell,
    ) -> None:
        super().__init__(actor, agents, session, probe, watchdog, bell)
        self._intake = intake

    async def start(self, *, room: Callable[[], int], wake: Callable[[], None]) -> None:
        await self._intake.start(room=room, wake=wake)

    async def stop(self) -> None:
        await self._intake.stop()

    async def close(self) -> None:
        await self._intake.close()

    def begin_claim(self, capacity: Capacity) -> PendingClaim | None:
        if not self._intake.is_up:
            return super().begin_claim(capacity)
        deliveries = self._intake.take_arrived(min(capacity.turns, capacity.commands))
        if not deliveries:
            return None
        return PendingClaim(self._actor.new_id(), capacity, len(deliveries), tuple(deliveries))

    async def claim_commands(self, claim: PendingClaim) -> Sequence[c.Command]:
        if not claim.deliveries:
            return await super().claim_commands(claim)
        served_elsewhere = await self._others.served_elsewhere()
        return [
            self._actor.command(
                c.Claim,
                command_id=f"{claim.id}.{number}",
                task_id=delivery.task_id,
                attempt_id=f"{claim.id}.{number}",
                session_id=claim.capacity.session_id,
                agent_version=self._versions.get(delivery.agent),
                served_elsewhere=served_elsewhere.get(delivery.agent, ()),
                turn_id=delivery.turn_id,
                epoch=delivery.epoch,
                agents=(delivery.agent,),  # as the entry says: the agent that the worker will run
            )
            for number, delivery in enumerate(claim.deliveries)
        ]

    async def on_answer(self, claim: PendingClaim, replies: Sequence[Reply]) -> Sequence[Offer]:
        if not claim.deliveries:
            return await super().on_answer(claim, replies)
        found = await sort_deliveries(self._actor.store, claim.deliveries, replies)
        session_id = claim.capacity.session_id
        if found.is_lost:
            self._session.lose(session_id, "the store refused its claims")
        self._intake.put_back(found.again)
        self._intake.drop(found.void)
        if session_id != self._session.id:
            return ()
        for delivery, offer in found.granted:
            self._intake.hold(offer.task.attempt_id or "", delivery)
        self.was_full = claim.limit == claim.capacity.turns
        return [offer for _, offer in found.granted]

    def on_no_answer(self, claim: PendingClaim) -> None:
        self._intake.put_back(claim.deliveries)

    def on_settled(self, attempts: Collection[str]) -> None:
        self._intake.release(attempts)

    def on_session_lost(self) -> None:
        super().on_session_lost()
        self._intake.forget()

    def on_room(self) -> None:
        self._intake.look_for_room()

    def on_ring(self) -> bool:
        """A stream that is up wakes the worker itself when it has brought something."""
        super().on_ring()
        return not self._intake.is_up

    def _on_look(self, has_work: bool) -> None:
        super()._on_look(has_work)
        self._intake.expect_work(has_work)

    @property
    def is_ready(self) -> bool:
        return self._intake.arrived_count > 0 if self._intake.is_up else super().is_ready

    async def seconds_to_start(self) -> float:
        return math.inf if self._intake.is_up else await super().seconds_to_start()


class SortedDeliveries(msgspec.Struct, frozen=True, kw_only=True):
    """`granted` may start; there is nothing to do for `void`; `again` must be asked once more."""

    granted: list[tuple[Delivery, Offer]]
    void: list[Delivery]
    again: list[Delivery]
    is_lost: bool


async def sort_deliveries(
    store: Store, deliveries: Sequence[Delivery], replies: Sequence[Reply]
) -> SortedDeliveries:
    """Sort deliveries by what the store answered; a payload counts only if it is the one in the store."""
    granted: list[tuple[Delivery, Offer]] = []
    void: list[Delivery] = []
    again: list[Delivery] = []
    is_lost = False
    for delivery, reply in zip(deliveries, replies, strict=True):
        refusal = reply.refusal
        if refusal is None and reply.task is not None:
            payload = delivery.payload
            if content.fingerprint(payload) != reply.task.payload_hash:
                payload = (await store.card(reply.task.namespace, reply.task.payload_card)).content
            granted.append((delivery, Offer(reply.task, payload)))
        elif isinstance(refusal, StoreError | StaleAttempt):
            again.append(delivery)
            is_lost = is_lost or isinstance(refusal, StaleAttempt)
        elif refusal is None or refusal.code not in _STILL_OFFERED:
            void.append(delivery)
    return SortedDeliveries(granted=granted, void=void, again=again, is_lost=is_lost)
