"""Dead letters: read them, replay them (repaired if need be), or abandon them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from endwell.errors import EndwellError, StoreError
from endwell.model import content
from endwell.model.commands import AgentSpec
from endwell.model.moments import moment
from endwell.model.task import Task
from endwell.operate.actions import Actions
from endwell.operate.pages import bad_cursor, page_of
from endwell.operate.questions import brief_task, whole_task
from endwell.operate.repair import Edit, apply_edits
from endwell.policy.submitting import checked_payload
from endwell.store.contract import Store
from endwell.store.reads.side_rows import DeadLetter

PAGE = 500
OPEN = "open"


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """How a replay changes the payload: another payload, other values in it, or nothing."""

    payload: Any = None
    is_given: bool = False
    edits: tuple[Edit, ...] = ()


UNCHANGED = Replacement()


async def page(
    store: Store,
    namespace: str,
    *,
    fingerprint: str | None = None,
    everything: bool = False,
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Open dead letters, newest first; with `everything` closed ones too."""
    if cursor is not None and await store.find_task(namespace, cursor) is None:
        raise bad_cursor()
    status = None if everything else OPEN
    found = await store.dead_letters_page(
        namespace, status=status, fingerprint=fingerprint, before=cursor, limit=limit + 1
    )
    return page_of(found, limit, _shape, lambda letter: letter.task_id)


async def read_letter(store: Store, namespace: str, task_id: str) -> dict[str, Any]:
    """One dead letter with its payload and its error."""
    letter = await store.dead_letter(namespace, task_id)
    task = await whole_task(store, namespace, task_id)
    wanted = ("payload", "error", "idempotency_key", "dispatch_count", "crash_count", "superseded_by")
    return {**_shape(letter), **{key: task[key] for key in wanted}}


def _shape(letter: DeadLetter) -> dict[str, Any]:
    return {
        "task_id": letter.task_id,
        "agent": letter.agent,
        "reason": letter.reason,
        "fingerprint": letter.fingerprint,
        "retry_count": letter.retry_count,
        "failed_at": moment(letter.failed_at),
        "status": letter.status,
        "closed_at": moment(letter.closed_at),
    }


async def replay_many(ids: Sequence[str], replay: Callable[[str], Awaitable[Task]]) -> dict[str, Any]:
    """Replay each of them; a refusal is reported and does not hold up the others."""
    items, refused = [], []
    for each in ids:
        try:
            items.append(brief_task(await replay(each)))
        except StoreError:
            raise
        except EndwellError as refusal:
            refused.append({**refusal.as_dict(), "task_id": each})
    return {"items": items, "next": None, "refused": refused}


class DeadLetters:
    """Actions of a person on dead letters."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._store = actions.actor.store
        self._namespace = actions.actor.namespace

    async def open_ids(self, fingerprint: str | None) -> list[str]:
        """Every open dead letter, of one kind of failure or of all."""
        ids: list[str] = []
        before: str | None = None
        while found := await self._store.dead_letters_page(
            self._namespace, status=OPEN, fingerprint=fingerprint, before=before, limit=PAGE
        ):
            ids += [letter.task_id for letter in found]
            before = ids[-1]
        return ids

    async def replay(self, task_id: str, replacement: Replacement = UNCHANGED) -> Task:
        """Ask for its work again. Returns the new task; a dead letter can be replayed once."""
        return await self._actions.replay(task_id, await self._replay_payload(task_id, replacement))

    async def abandon(self, task_id: str, note: str | None = None) -> Task:
        """Close it for good."""
        await self._store.dead_letter(self._namespace, task_id)
        return await self._actions.abandon(task_id, note)

    async def _replay_payload(self, task_id: str, replacement: Replacement) -> bytes:
        """The payload of the replay; refused if the agent would not take it."""
        await self._store.dead_letter(self._namespace, task_id)
        task = await self._store.task(self._namespace, task_id)
        payload = replacement.payload
        if not replacement.is_given:
            card = await self._store.card(self._namespace, task.payload_card)
            payload = content.decode_stored(card.content)
        spec = await self._store.agent(self._namespace, task.agent)
        return checked_payload(apply_edits(payload, replacement.edits), spec or AgentSpec(name=task.agent))
