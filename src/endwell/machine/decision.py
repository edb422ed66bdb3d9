"""What `decide` answers: facts to be written, a refusal, or both (a refused stale write is a fact too)."""

from __future__ import annotations

import msgspec

from endwell.errors import NotFound, Refused
from endwell.model.card import Card
from endwell.model.commands import Submit
from endwell.model.effect import Effect
from endwell.model.facts import Fact
from endwell.model.message import Message, MessageStatus
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


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What the door saw beside the task itself, where the command asks for it."""

    session_is_live: bool = True
    key_holder: str | None = None
    effect: Effect | None = None
    messages: tuple[Message, ...] = ()
    calls: frozenset[str] = frozenset()


NOTHING = Decision()


def refuse(refusal: Refused | NotFound, *facts: Fact) -> Decision:
    """No, and this is why."""
    return Decision(facts=facts, refusal=refusal)
