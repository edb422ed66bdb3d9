"""A turn as the stream carries it: what its task's row says, under the name by which it is offered."""

from __future__ import annotations

from endwell.machine.offers import OfferName
from endwell.model.task import Task
from endwell.store.stream_reads import ReadyTurn
from endwell.streams.entries import Carried

Key = tuple[str, int]
"""A turn and its epoch: what an entry names."""


def carried(task: Task | ReadyTurn, turn: OfferName, payload: bytes) -> Carried:
    """What its entry is to say."""
    return Carried(
        task_id=task.id,
        turn_id=turn.turn_id,
        turn_number=turn.number,
        epoch=turn.epoch,
        agent=task.agent,
        parent_id=task.parent_id,
        idempotency_key=task.idempotency_key,
        retry_count=task.retry_count,
        payload=payload,
    )
