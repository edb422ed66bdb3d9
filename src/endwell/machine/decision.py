"""What `decide` answers: facts to be written, a refusal, or both (a refused stale write is a fact too)."""

from __future__ import annotations

import msgspec

from endwell.errors import NotFound, Refused
from endwell.model.approval import ApprovalRow
from endwell.model.card import Card
from endwell.model.commands import Submit
from endwell.model.effect import Effect
from endwell.model.facts import Fact
from endwell.model.message import Message, MessageStatus
from endwell.model.session import Session
from endwell.model.wait import Wait
from endwell.policy.approval import Guard
from endwell.policy.ledger import LedgerAnswer


class Closing(msgspec.Struct, frozen=True, gc=False):
    """A message that needs no more attention, and why if nobody consumed it."""

    message_id: str
    status: MessageStatus
    why: str | None = None


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Facts in order; cards that they name; messages sent and closed; a new task beside them; or why not."""

    facts: tuple[Fact, ...] = ()
    cards: tuple[Card, ...] = ()
    messages: tuple[Message, ...] = ()
    closed: tuple[Closing, ...] = ()
    spawn: Submit | None = None
    ledger: LedgerAnswer | None = None
    refusal: Refused | NotFound | None = None


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """What the door saw beside the task itself, where the command asks for it.

    `waits` are those that the command may concern, where they are rows of their own; a clock is shown the
    next ones by deadline, and `beyond` is the deadline of the first that is not shown.
    """

    session_is_live: bool = True
    key_holder: str | None = None
    effect: Effect | None = None
    restored_at: int | None = None
    messages: tuple[Message, ...] = ()
    calls: frozenset[str] = frozenset()
    # the approval rules that workers have registered for the agent, and what was asked about this task
    rules: tuple[Guard, ...] = ()
    approval: ApprovalRow | None = None
    waits: tuple[Wait, ...] = ()
    beyond: int | None = None
    session: Session | None = None


NOTHING = Decision()


def refuse(refusal: Refused | NotFound, *facts: Fact) -> Decision:
    """No, and this is why."""
    return Decision(facts=facts, refusal=refusal)
