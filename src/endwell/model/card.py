"""Cards: immutable pieces of content that rows and events name by id and hash."""

from __future__ import annotations

from typing import Literal

import msgspec

CardKind = Literal["task.instruction", "task.deliverable", "tool.call", "tool.result"]


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
