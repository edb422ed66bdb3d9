"""Settling waits: an answer becomes a record, and the turn goes on when nothing is waited for any more."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from endwell.machine.decision import NOTHING, Decision
from endwell.model import facts as f
from endwell.model.card import Card
from endwell.model.content import fingerprint
from endwell.model.task import Task, Wait

_encoder = msgspec.json.Encoder(order="sorted")
_OVER = ("timeout", "expired")


class Answered(NamedTuple):
    """The record of one wait, and what its row says from now on."""

    card: Card
    wait_status: str


def record(task: Task, tool_call_id: str, now: int, *, status: str, **said: Any) -> Answered:
    """How a wait was answered, and where the answer is; it lies where the step's identity finds it."""
    known = {name: value for name, value in said.items() if value is not None}
    content = _encoder.encode({"status": status, "turn": task.turn_id, **known})
    card = Card(task.namespace, tool_call_id, task.id, "tool.result", content, fingerprint(content), now)
    return Answered(card, "expired" if status in _OVER else "applied")


def next_deadline(waits: tuple[Wait, ...]) -> int | None:
    """When the next wait is over that has not been reported."""
    return min((w.deadline for w in waits if w.is_open and not w.is_reported), default=None)


def settle(task: Task, waits: tuple[Wait, ...], now: int, answers: dict[str, Answered]) -> Decision:
    """Apply these answers, and queue the turn again when nothing is waited for any more."""
    left = tuple(w for w in waits if w.is_open and w.tool_call_id not in answers)
    wait_by = next_deadline(left)
    settled = tuple(
        f.WaitAnswered(
            tool_call_id=w.tool_call_id,
            wait_status=answers[w.tool_call_id].wait_status,
            result_card=answers[w.tool_call_id].card.id,
            wait_by=wait_by,
        )
        for w in waits
        if w.is_open and w.tool_call_id in answers
    )
    if not settled:
        return NOTHING
    resumed = () if left else (f.TaskResumed(epoch=task.epoch + 1, run_at=now),)
    return Decision(facts=(*settled, *resumed), cards=tuple(answer.card for answer in answers.values()))
