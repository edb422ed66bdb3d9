"""Cards: immutable pieces of content, which rows and events name by id and hash."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

import msgspec

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_MOMENT, _REST = 10, 16
"""Characters of a task's id that encode its time, and characters that are random."""

CardKind = Literal[
    "task.instruction",
    "task.deliverable",
    "task.draft",
    "tool.call",
    "tool.result",
    "step.result",
    "step.checked",
    "step.reference",
    "step.failure",
    "approval.shown",
    "signal",
    "nudge",
]


class Card(msgspec.Struct, frozen=True, gc=False):
    """One piece of content. `content` is canonical JSON; `hash` is its SHA-256."""

    namespace: str
    id: str
    task_id: str
    kind: CardKind
    content: bytes
    hash: str
    created_at: int


def instruction_id(task_id: str) -> str:
    """The card with the task's payload."""
    return f"{task_id}.in"


def deliverable_id(task_id: str) -> str:
    """The card with the task's deliverable."""
    return f"{task_id}.out"


def turn_deliverable_id(turn_id: str) -> str:
    """The deliverable of a turn that was ended by force while its task continues."""
    return f"{turn_id}.out"


def nudge_id(task_id: str, number: int) -> str:
    """The card with a nudge to the agent."""
    return f"{task_id}.nudge{number}"


def draft_id(task_id: str, number: int) -> str:
    """The card with a partial deliverable."""
    return f"{task_id}.draft{number}"


def record_id(task_id: str, step: str) -> str:
    """The record of a step, which is also the `tool_call_id` of a step that waits for an answer."""
    return f"{task_id}.s.{step}"


def records_between(task_id: str, run: int) -> tuple[str, str]:
    """Two ids between which the records of one run lie."""
    return f"{task_id}.s.{run}:", f"{task_id}.s.{run};"


def step_label(step: str) -> str:
    """A step's identity for people: without the run, and without an empty branch."""
    return step.partition(":")[2].removeprefix("()")


def call_id(tool_call_id: str) -> str:
    """The card with the tool's name and the arguments of a call."""
    return _id_beside(tool_call_id, "c")


def shown_id(approval_id: str) -> str:
    """The card with what an approver is shown."""
    return _id_beside(approval_id, "q")


def answer_id(tool_call_id: str, message_id: str) -> str:
    """The card with an answer as it arrived; the wait's record names the answer that counted."""
    return f"{_id_beside(tool_call_id, 'a')}~{message_id}"


def child_id(tool_call_id: str) -> str:
    """The task that a call starts: one call always names one child, with the time of its parent's id."""
    digest = int.from_bytes(hashlib.sha256(tool_call_id.encode()).digest())
    letters = "".join(_ALPHABET[digest >> 5 * place & 31] for place in range(_REST))
    return task_of_call(tool_call_id)[:_MOMENT] + letters


def draft_in(report: Any) -> str | None:
    """The salvaged draft that the report of a task without a result names."""
    card_id = report.get("draft_card") if isinstance(report, dict) else None
    return card_id if isinstance(card_id, str) else None


def task_of_call(tool_call_id: str) -> str:
    """The task whose turn makes the call."""
    return tool_call_id.partition(".s.")[0]


def _id_beside(tool_call_id: str, room: str) -> str:
    """An id outside the range of the records, which are all read when a turn continues."""
    task_id, _, step = tool_call_id.partition(".s.")
    return f"{task_id}.{room}.{step}"
