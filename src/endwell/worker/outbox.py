"""The endings of turns that the store has not taken yet, and what follows a suspension that it took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile

import msgspec

from endwell.model import commands as c
from endwell.model.content import fingerprint
from endwell.store.actor import Actor
from endwell.store.batch import follow_up
from endwell.store.rows import Reply
from endwell.turn.endings import EndedTurn

Answered = list[tuple[c.TaskCommand, Reply]]
"""The commands of one ending that the store has taken, each with its reply."""


class Outbox:
    """Endings wait here; those in a commit under way are kept until it is answered."""

    def __init__(self) -> None:
        self._waiting: list[EndedTurn] = []
        self._handed_in: list[list[EndedTurn]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def command_count(self) -> int:
        return sum(len(ending.commands) for ending in self._waiting)

    def held_attempts(self) -> tuple[tuple[str, str], ...]:
        """Task and attempt of every ending that the store may not have. The heartbeat's thread calls this."""
        endings = [*self._waiting, *(ending for batch in tuple(self._handed_in) for ending in batch)]
        return tuple((ending.task_id, ending.attempt_id) for ending in endings)

    def add(self, ending: EndedTurn) -> None:
        self._waiting.append(ending)

    def take(self, limit: int) -> list[EndedTurn]:
        """As many endings as fit into one commit of `limit` commands, and at least one."""
        sizes = accumulate(len(ending.commands) for ending in self._waiting)
        count = max(sum(1 for _ in takewhile(lambda size: size <= limit, sizes)), 1)
        batch = self._waiting[:count]
        self._handed_in.append(batch)
        del self._waiting[:count]
        return batch

    def put_back(self, batch: list[EndedTurn], unsettled: Sequence[EndedTurn]) -> None:
        """The commit of `batch` is over; `unsettled` of it go first next time."""
        self._waiting[:0] = unsettled
        self._handed_in = [each for each in self._handed_in if each is not batch]

    def clear(self) -> None:
        """The lease is gone: nothing of this may be handed in."""
        self._waiting.clear()


def answered_endings(
    batch: Sequence[EndedTurn], replies: Sequence[Reply]
) -> Iterator[tuple[EndedTurn, Answered]]:
    """Each ending of a batch with the replies to its commands."""
    answers = iter(replies)
    for ending in batch:
        yield ending, [(command, next(answers)) for command in ending.commands]


async def commands_after_suspension(actor: Actor, answered: Answered) -> list[c.Command]:
    """Commands for answers that came before the suspension, and for children that could not be created."""
    suspended, reply = answered[-1]
    if reply.refusal is not None:
        return []
    refused = [
        _answer_refused_child(actor, suspended, submit, answer)
        for submit, answer in answered
        if isinstance(submit, c.Submit) and submit.parent_call and answer.refusal is not None
    ]
    waiting = await actor.store.pending_messages(suspended.namespace, suspended.task_id)
    return [*refused, *(follow_up(message, actor.name) for message in waiting)]


def _answer_refused_child(actor: Actor, parent: c.TaskCommand, submit: c.Submit, reply: Reply) -> c.Answer:
    """A call whose child was refused is answered at once, so that its parent does not wait in vain."""
    content = msgspec.json.encode(reply.refusal.as_dict() if reply.refusal else None, order="sorted")
    return actor.command(
        c.Answer,
        task_id=parent.task_id,
        tool_call_id=submit.parent_call or "",
        content=content,
        content_hash=fingerprint(content),
        status="failed",
    )
