"""Turns that a queue brought: asked of the store before anything starts, and sorted by what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from endwell.errors import StaleAttempt, StoreError
from endwell.model import commands as c
from endwell.model import content
from endwell.store.contract import Store
from endwell.store.rows import Offer, Reply
from endwell.streams.entries import Delivery

_STANDS = ("too_early", "key_is_held", "clock_is_due")
"""Refusals after which the offer still stands: it stays pending, and the orchestrator sees to it."""


class SortedDeliveries(msgspec.Struct, frozen=True, kw_only=True):
    """`granted` may start; `void` has nothing to be done; `again` is to be asked once more."""

    granted: list[tuple[Delivery, Offer]]
    void: list[Delivery]
    again: list[Delivery]
    is_lost: bool


def claims_of(
    deliveries: Sequence[Delivery],
    *,
    batch: str,
    namespace: str,
    actor: str,
    session_id: str,
    versions: Mapping[str, str],
    served_elsewhere: Mapping[str, tuple[str, ...]],
) -> list[c.Claim]:
    """A claim each; every attempt is new and named after the batch."""
    return [
        c.Claim(
            command_id=f"{batch}.{number}",
            namespace=namespace,
            actor=actor,
            task_id=each.task_id,
            attempt_id=f"{batch}.{number}",
            session_id=session_id,
            agent_version=versions.get(each.agent),
            served_elsewhere=served_elsewhere.get(each.agent, ()),
            turn_id=each.turn_id,
            epoch=each.epoch,
            agents=(each.agent,),  # the entry's word: what the worker will run
        )
        for number, each in enumerate(deliveries)
    ]


async def answered(
    store: Store, deliveries: Sequence[Delivery], replies: Sequence[Reply]
) -> SortedDeliveries:
    """What the store's answers mean. What was asked is believed only if it is what the store has."""
    granted: list[tuple[Delivery, Offer]] = []
    void: list[Delivery] = []
    again: list[Delivery] = []
    is_lost = False
    for each, reply in zip(deliveries, replies, strict=True):
        refusal = reply.refusal
        if refusal is None and reply.task is not None:
            payload = each.payload
            if content.fingerprint(payload) != reply.task.payload_hash:
                payload = (await store.card(reply.task.namespace, reply.task.payload_card)).content
            granted.append((each, Offer(reply.task, payload)))
        elif isinstance(refusal, StoreError | StaleAttempt):
            again.append(each)
            is_lost = is_lost or isinstance(refusal, StaleAttempt)
        elif refusal is None or refusal.code not in _STANDS:
            void.append(each)
    return SortedDeliveries(granted=granted, void=void, again=again, is_lost=is_lost)
