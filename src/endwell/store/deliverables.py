"""What a task delivered, whole: a report that has salvaged a draft is given with the draft in it."""

from __future__ import annotations

from typing import Any

from endwell.model import content
from endwell.model.card import draft_in
from endwell.model.task import Task
from endwell.store.reads import Reads


async def delivered(store: Reads, task: Task, known: bytes | None = None) -> Any:
    """The result of an ended task, or the report of what became of it; None while it lives.

    `known` is its card's content, where that has been read already.
    """
    if task.deliverable_card is None:
        return None
    if known is None:
        value = await _content(store, task, task.deliverable_card)
    else:
        value = content.decode_stored(known)
    draft = None if task.status == "succeeded" else draft_in(value)
    return value if draft is None else {**value, "draft": await _content(store, task, draft)}


async def _content(store: Reads, task: Task, card_id: str) -> Any:
    return content.decode_stored((await store.card(task.namespace, card_id)).content)
