"""The store as a turn in a child process sees it: every question goes to the worker, which asks its own.

`RemoteStore` is the child's side, `child_access.ChildAccess` the worker's. What crosses is JSON of known
types: a command with the name of its type, an error with the name of its class; the type of an answer is
that of its question.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from endwell import errors
from endwell.errors import EndwellError
from endwell.model import commands as c
from endwell.model.card import Card
from endwell.model.effect import Effect
from endwell.model.inside import OnParentEnd
from endwell.model.session import Session
from endwell.model.task import Task
from endwell.policy.ledger import LedgerAnswer
from endwell.store.rows import Reply
from endwell.turn.suspension import Suspended

Ask = Callable[[str, Mapping[str, Any]], Awaitable[msgspec.Raw]]
"""Sends a request with what belongs to it, and waits for the answer."""


class ErrorSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of Endwell's tree; `type` names its class there."""

    type: str
    code: str
    message: str
    hint: str | None = None
    field: str | None = None
    task_id: str | None = None


class ReplySaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply to one command of a turn."""

    task: Task | None = None
    refusal: ErrorSaid | None = None
    ledger: LedgerAnswer | None = None


class CommandSaid(msgspec.Struct, frozen=True):
    """A command with the name of its type."""

    type: str
    fields: msgspec.Raw


class ChildSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task that answers one of the calls. The worker makes the submission, its approval rule included."""

    tool_call_id: str
    agent: str
    payload: bytes
    agent_key: str | None = None
    on_parent_end: OnParentEnd = "cancel"
    deciding: int = 0
    """How much of the call's time the child process set aside for an approval."""


class WaitingSaid(msgspec.Struct, frozen=True):
    """What a suspended turn waits for, and the tasks that it calls."""

    calls: tuple[c.Call, ...]
    children: tuple[ChildSaid, ...]


_ANSWERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    "commit": msgspec.json.Decoder(list[ReplySaid]),
    "now": msgspec.json.Decoder(int),
    "card": msgspec.json.Decoder(Card),
    "cards_page": msgspec.json.Decoder(list[Card]),
    "cards_by_ids": msgspec.json.Decoder(list[Card]),
    "effect": msgspec.json.Decoder(Effect | None),
    "session": msgspec.json.Decoder(Session | None),
    "agent": msgspec.json.Decoder(c.AgentSpec | None),
    "agents": msgspec.json.Decoder(list[c.AgentSpec]),
}
"""Every method that may be asked for, and how to read its answer."""
PAGE_CARDS: Final = 32
"""Most cards in one answer, so that the worker never holds more of them for one child."""


class RemoteStore:
    """In the child. A refusal is raised, or is in its reply, as the worker's store said it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def commit(self, commands: Sequence[c.Command]) -> list[Reply]:
        """Hand in commands of this turn."""
        said = [{"type": type(command).__name__, "fields": command} for command in commands]
        return [_reply(one) for one in await self._asked("commit", said)]

    async def now(self) -> int:
        """The store's time."""
        now: int = await self._asked("now")
        return now

    async def card(self, namespace: str, card_id: str) -> Card:
        """One card."""
        card: Card = await self._asked("card", namespace, card_id)
        return card

    async def cards_between(self, namespace: str, first: str, last: str) -> list[Card]:
        """The cards from one id up to another, which is not included."""
        cards: list[Card] = []
        while True:
            page = await self.cards_page(namespace, first, last, PAGE_CARDS)
            cards += page
            if len(page) < PAGE_CARDS:
                return cards
            first = page[-1].id  # the next page begins behind it

    async def cards_page(self, namespace: str, after: str, before: str, limit: int) -> list[Card]:
        """The cards behind one id and before another, by id."""
        cards: list[Card] = await self._asked("cards_page", namespace, after, before, limit)
        return cards

    async def cards_by_ids(self, namespace: str, ids: Sequence[str]) -> list[Card]:
        """Many cards at once, in no particular order."""
        cards: list[Card] = []
        for start in range(0, len(ids), PAGE_CARDS):
            cards += await self._asked("cards_by_ids", namespace, ids[start : start + PAGE_CARDS])
        return cards

    async def effect(self, namespace: str, key: str) -> Effect | None:
        """One effect."""
        effect: Effect | None = await self._asked("effect", namespace, key)
        return effect

    async def session(self, namespace: str, session_id: str) -> Session | None:
        """One session."""
        session: Session | None = await self._asked("session", namespace, session_id)
        return session

    async def agent(self, namespace: str, name: str) -> c.AgentSpec | None:
        """What is known of one agent."""
        spec: c.AgentSpec | None = await self._asked("agent", namespace, name)
        return spec

    async def agents(self, namespace: str) -> list[c.AgentSpec]:
        """All registered agents."""
        specs: list[c.AgentSpec] = await self._asked("agents", namespace)
        return specs

    async def _asked(self, method: str, *arguments: Any) -> Any:
        answer = await self._ask("store", {"method": method, "arguments": arguments})
        return _ANSWERS[method].decode(answer)


def waiting_said(waiting: Suspended) -> WaitingSaid:
    """A suspension as it crosses."""
    children = tuple(
        ChildSaid(
            submit.parent_call or "",
            submit.agent,
            submit.payload,
            submit.agent_key,
            submit.on_parent_end,
            submit.approval_within or 0,
        )
        for submit in waiting.submits
    )
    return WaitingSaid(waiting.calls, children)


def error_said(error: EndwellError) -> ErrorSaid:
    """An error as it crosses; of a class that is not in the tree, its nearest ancestor there."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return ErrorSaid(kind.__name__, error.code, error.message, error.hint, error.field, error.task_id)


def error_of(said: ErrorSaid) -> EndwellError:
    """The error again: same class, same code."""
    kind = getattr(errors, said.type, None)
    if not isinstance(kind, type) or not issubclass(kind, EndwellError):
        kind = EndwellError
    error: EndwellError = kind.__new__(kind)
    about = {"code": said.code, "hint": said.hint, "field": said.field, "task_id": said.task_id}
    EndwellError.__init__(error, said.message, **about)
    return error


def reply_said(reply: Reply) -> ReplySaid:
    """A reply as it crosses."""
    refusal = None if reply.refusal is None else error_said(reply.refusal)
    return ReplySaid(reply.task, refusal, reply.ledger)


def _reply(said: ReplySaid) -> Reply:
    refusal = None if said.refusal is None else error_of(said.refusal)
    return Reply(task=said.task, refusal=refusal, ledger=said.ledger)
