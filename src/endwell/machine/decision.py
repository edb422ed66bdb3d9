"""What `decide` answers: facts to be written, a refusal, or both (a refused stale write is a fact too)."""

from __future__ import annotations

import msgspec

from endwell.errors import NotFound, Refused
from endwell.model.card import Card
from endwell.model.commands import Submit
from endwell.model.facts import Fact


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Facts in order; cards that they name; a new task to create beside them; or why not."""

    facts: tuple[Fact, ...] = ()
    cards: tuple[Card, ...] = ()
    spawn: Submit | None = None
    refusal: Refused | NotFound | None = None


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What the door saw beside the task itself, where the command asks for it."""

    session_is_live: bool = True
    key_holder: str | None = None


NOTHING = Decision()


def refuse(refusal: Refused | NotFound, *facts: Fact) -> Decision:
    """No, and this is why."""
    return Decision(facts=facts, refusal=refusal)
