"""Settling waits: an answer becomes a record, and the turn is queued when no wait is open any more."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from endwell.machine.decision import NOTHING, Decision, Evidence
from endwell.model import facts as f
from endwell.model.card import Card
from endwell.model.content import fingerprint
from endwell.model.task import Task, has_wait_rows, open_waits, waits_of
from endwell.model.wait import Wait, WaitStatus

_encoder = msgspec.json.Encoder(order="sorted")
_OVER = ("timeout", "expired")


class Answered(NamedTuple):
    """The record of one wait, and its new status; `answer` is card and hash of an answer that arrived."""

    card: Card
    wait_status: WaitStatus
    answer: tuple[str, str] | None = None


def record_answer(task: Task, tool_call_id: str, now: int, *, status: str, **said: Any) -> Answered:
    """Record how a wait was answered, and where the answer is, under the step's identity."""
    known = {name: value for name, value in said.items() if value is not None}
    content = _encoder.encode({"status": status, "turn": task.turn_id, **known})
    card = Card(task.namespace, tool_call_id, task.id, "tool.result", content, fingerprint(content), now)
    return Answered(card, "expired" if status in _OVER else "applied")


class Rest(NamedTuple):
    """Waits that a decision is not shown: how many are open, and until when none of them is overdue."""

    open: int = 0
    wait_by: int | None = None


NO_REST = Rest()


def known_waits(task: Task, seen: Evidence) -> tuple[tuple[Wait, ...], Rest]:
    """The waits that a decision is shown, and what it must know of the others.

    An answer is shown its own wait only. The next deadline then stays as it was, which may be too early; a
    clock that fires too early is shown the next waits, and corrects it.
    """
    if not has_wait_rows(task):
        return waits_of(task), NO_REST
    others = open_waits(task) - sum(wait.is_open for wait in seen.waits)
    return seen.waits, Rest(others, task.wait_by if others else None)


def next_deadline(waits: tuple[Wait, ...], rest: Rest = NO_REST) -> int | None:
    """The next deadline of a wait that has not been reported, or an earlier moment."""
    deadlines = [w.deadline for w in waits if w.is_open and not w.is_reported]
    if rest.wait_by is not None:
        deadlines.append(rest.wait_by)
    return min(deadlines, default=None)


def settle(
    task: Task, waits: tuple[Wait, ...], now: int, answers: dict[str, Answered], rest: Rest = NO_REST
) -> Decision:
    """Apply these answers, and queue the turn again when no wait is open any more."""
    left = tuple(w for w in waits if w.is_open and w.tool_call_id not in answers)
    wait_by = next_deadline(left, rest)
    settled = [
        _answer_fact(wait, answers[wait.tool_call_id], wait_by)
        for wait in waits
        if wait.is_open and wait.tool_call_id in answers
    ]
    if not settled:
        return NOTHING
    resumed = () if left or rest.open else (f.TaskResumed(epoch=task.epoch + 1, run_at=now),)
    return Decision(facts=(*settled, *resumed), cards=tuple(answer.card for answer in answers.values()))


def _answer_fact(wait: Wait, by: Answered, wait_by: int | None) -> f.WaitAnswered:
    answer_card, answer_hash = by.answer or (None, None)
    return f.WaitAnswered(
        tool_call_id=wait.tool_call_id,
        wait_status=by.wait_status,
        result_card=by.card.id,
        wait_by=wait_by,
        result_hash=by.card.hash,
        answer_card=answer_card,
        answer_hash=answer_hash,
    )
