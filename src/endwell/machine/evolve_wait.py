"""evolve_wait(wait, fact) -> wait: what a fact does to one wait, wherever that is kept. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from endwell.model import facts as f
from endwell.model.wait import Wait

WaitFact = f.WaitAnswered | f.WaitExpired


def settled_calls(fact: WaitFact) -> tuple[str, ...]:
    """The waits that the fact is about, by their calls."""
    if isinstance(fact, f.WaitAnswered):
        return (fact.tool_call_id,)
    return (*fact.reported, *fact.skipped)


def evolve_wait(wait: Wait, fact: WaitFact) -> Wait:
    """The wait after a fact that is about it."""
    if isinstance(fact, f.WaitAnswered):
        return replace(wait, wait_status=fact.wait_status, result_card=fact.result_card)
    return replace(wait, is_reported=True)


def evolve_waits(waits: tuple[Wait, ...], fact: WaitFact) -> tuple[Wait, ...]:
    """All waits of a turn after a fact that is about some of them."""
    about = frozenset(settled_calls(fact))
    return tuple(evolve_wait(wait, fact) if wait.tool_call_id in about else wait for wait in waits)
