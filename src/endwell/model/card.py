"""Cards: immutable pieces of content that rows and events name by id and hash."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

import msgspec

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_MOMENT, _REST = 10, 16
"""How many characters of a task's id say when it was made, and how many are left to chance."""

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
    """The card that holds what was asked."""
    return f"{task_id}.in"


def deliverable_id(task_id: str) -> str:
    """The one card that holds what came of it."""
    return f"{task_id}.out"


def turn_deliverable_id(turn_id: str) -> str:
    """What a turn leaves that was ended by force although its task goes on."""
    return f"{turn_id}.out"


def nudge_id(task_id: str, number: int) -> str:
    """What an agent was told that goes round in circles."""
    return f"{task_id}.nudge{number}"


def draft_id(task_id: str, number: int) -> str:
    """A partial deliverable, kept in case there is never a whole one."""
    return f"{task_id}.draft{number}"


def record_id(task_id: str, step: str) -> str:
    """The record of a step, and at once the `tool_call_id` of a step that waits for its answer."""
    return f"{task_id}.s.{step}"


def records_between(task_id: str, run: int) -> tuple[str, str]:
    """The records of one run are the cards from the first of these ids up to the second."""
    return f"{task_id}.s.{run}:", f"{task_id}.s.{run};"


def step_label(step: str) -> str:
    """A step's identity as people read it: without the run, and without the branch where there is none."""
    return step.partition(":")[2].removeprefix("()")


def call_id(tool_call_id: str) -> str:
    """The card that says which tool was called, and with what."""
    return _beside(tool_call_id, "c")


def shown_id(approval_id: str) -> str:
    """The card that holds what exactly is to be approved."""
    return _beside(approval_id, "q")


def answer_id(tool_call_id: str, message_id: str) -> str:
    """An answer as it came; the record names the one that counted."""
    return f"{_beside(tool_call_id, 'a')}~{message_id}"


def child_id(tool_call_id: str) -> str:
    """The task that a call starts: the same call always finds the same child. As old as its parent."""
    digest = int.from_bytes(hashlib.sha256(tool_call_id.encode()).digest())
    letters = "".join(_ALPHABET[digest >> 5 * place & 31] for place in range(_REST))
    return task_of_call(tool_call_id)[:_MOMENT] + letters


def draft_in(report: Any) -> str | None:
    """The card of the draft that the report of a task without a result has salvaged."""
    card_id = report.get("draft_card") if isinstance(report, dict) else None
    return card_id if isinstance(card_id, str) else None


def task_of_call(tool_call_id: str) -> str:
    """The task whose turn makes the call."""
    return tool_call_id.partition(".s.")[0]


def _beside(tool_call_id: str, room: str) -> str:
    """Not among the records, which are all read when a turn goes on."""
    task_id, _, step = tool_call_id.partition(".s.")
    return f"{task_id}.{room}.{step}"
