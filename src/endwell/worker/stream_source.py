"""Turns that a stream brings; while the stream is away, the worker claims from the store by itself.

A delivery grants nothing: it is claimed in the store before its turn begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from endwell.errors import StaleAttempt, StoreError
from endwell.model import commands as c
from endwell.model import content
from endwell.store.probe import ProbeResult
from endwell.store.rows import Offer, Reply
from endwell.streams.entries import Delivery
from endwell.streams.intake import StreamIntake
from endwell.worker.store_source import Capacity, PendingClaim, SourceParts, StoreSource

_STILL_OFFERED = ("too_early", "key_is_held", "clock_is_due", "suspect_is_held")
"""Refusals after which the offer stands: its entry stays pending, and the orchestrator offers it again."""


class StreamSource(StoreSource):
    """A claim asks for each turn that was delivered."""

    def __init__(self, parts: SourceParts, intake: StreamIntake) -> None:
        super().__init__(parts)
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
                may_take_suspect=claim.capacity.may_take_suspect,
            )
            for number, delivery in enumerate(claim.deliveries)
        ]

    async def on_answer(self, claim: PendingClaim, replies: Sequence[Reply]) -> Sequence[Offer]:
        if not claim.deliveries:
            return await super().on_answer(claim, replies)
        granted: list[tuple[Delivery, Offer]] = []
        void: list[Delivery] = []
        again: list[Delivery] = []
        for delivery, reply in zip(claim.deliveries, replies, strict=True):
            refusal = reply.refusal
            if refusal is None and reply.task is not None:
                granted.append((delivery, await self._granted_offer(delivery, reply)))
            elif isinstance(refusal, StoreError | StaleAttempt):
                again.append(delivery)
            elif refusal is None or refusal.code not in _STILL_OFFERED:
                void.append(delivery)
        session_id = claim.capacity.session_id
        if any(isinstance(reply.refusal, StaleAttempt) for reply in replies):
            self._session.lose_lease(session_id, "the store refused its claims")
        self._intake.put_back(again)
        self._intake.drop(void)
        if session_id != self._session.id:
            return ()
        for delivery, offer in granted:
            self._intake.hold(offer.task.attempt_id or "", delivery)
        self.was_full = claim.limit == claim.capacity.turns
        return [offer for _, offer in granted]

    async def _granted_offer(self, delivery: Delivery, reply: Reply) -> Offer:
        """The granted turn; the payload that was delivered counts only if it is the one in the store."""
        task, payload = reply.unwrap(), delivery.payload
        if content.fingerprint(payload) != task.payload_hash:
            payload = (await self._actor.store.card(task.namespace, task.payload_card)).content
        return Offer(task, payload)

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

    def _on_look(self, result: ProbeResult) -> bool:
        has_work = super()._on_look(result)
        self._intake.expect_work(has_work)
        return has_work

    @property
    def is_ready(self) -> bool:
        return self._intake.arrived_count > 0 if self._intake.is_up else super().is_ready

    async def seconds_to_start(self) -> float:
        return math.inf if self._intake.is_up else await super().seconds_to_start()
