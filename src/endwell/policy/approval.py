"""Approval rules: who must agree before a task starts or a tool is called. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import lru_cache
from typing import Final

import msgspec

from endwell.errors import BadInput
from endwell.model import content
from endwell.model.names import person_name, same_person
from endwell.settings import ApprovalSettings as ApprovalSettings

RISKS: Final = ("read_only", "write_draft", "write_external", "money_movement")
"""What a tool may do to the outside world, from harmless to grave."""
LONGEST_WITHIN_SECONDS: Final = 10 * 366 * 86_400.0
LARGEST_QUORUM: Final = 1000


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """`@app.agent(approval=Approval(by=("ada",)))`. The `[approval]` settings fill in what is left out.

    No name is verified: `quorum` guards against mistakes, not against fraud.
    """

    by: tuple[str, ...] = ()
    within: timedelta | float | None = None
    quorum: int = 1


class Guard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An approval rule as it is stored with an agent, and as the machine uses it."""

    by: tuple[str, ...] = ()
    within_seconds: float | None = None
    quorum: int = 1


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of an agent or tool that have no column of their own; the store keeps them as one JSON text."""

    timeout_seconds: float | None = None
    suspend_timeout_seconds: float | None = None
    risk: str | None = None
    approval: Guard | None = None


_NOTHING_SAID: Final = AgentOptions()
_decoder: Final = msgspec.json.Decoder(AgentOptions)
_encoder: Final = msgspec.json.Encoder(order="sorted")


def packed_options(options: AgentOptions) -> str | None:
    """The options as one column's text."""
    return None if options == _NOTHING_SAID else _encoder.encode(options).decode()


def options_of(text: str | None) -> AgentOptions:
    """The options that a column holds."""
    return _decoder.decode(text) if text else _NOTHING_SAID


_guard_decoder: Final = msgspec.json.Decoder(Guard)


def packed_guard(guard: Guard) -> str:
    """A resolved rule as one column's text."""
    return _encoder.encode(guard).decode()


@lru_cache(maxsize=256)
def guard_of(text: str) -> Guard:
    """The rule that a column holds."""
    return _guard_decoder.decode(text)


def resolve_options(options: AgentOptions, settings: ApprovalSettings) -> AgentOptions:
    """Resolve the approval rule by these settings, so that submitters need not know them."""
    return msgspec.structs.replace(options, approval=guard_for(options, settings))


def strictest_rule(first: Guard | None, *others: Guard) -> Guard | None:
    """Combine rules: the largest quorum, the shortest time, and the people that all of them name.

    If two rules have too few people in common, the later one names them: rules are in order of authority.
    """
    rule = first
    for other in others:
        rule = other if rule is None else _stricter_rule(rule, other)
    return rule


def _stricter_rule(weaker: Guard, other: Guard) -> Guard:
    quorum = max(weaker.quorum, other.quorum)
    times = [each for each in (weaker.within_seconds, other.within_seconds) if each is not None]
    both = tuple(name for name in other.by if name in weaker.by)
    by = both if weaker.by and other.by else other.by or weaker.by
    if (weaker.by or other.by) and count_people(by) < quorum:
        by = other.by
        quorum = min(quorum, count_people(by)) if by else quorum
    return Guard(by=by, within_seconds=min(times, default=None), quorum=quorum)


def guard_for(options: AgentOptions, settings: ApprovalSettings) -> Guard | None:
    """The rule of the agent or tool itself, else the rule for its risk; None if it needs no approval."""
    asked = options.approval
    if asked is None and options.risk in settings.risks:
        asked = Guard()
    if asked is None:
        return None
    within = asked.within_seconds if asked.within_seconds is not None else settings.within_seconds
    return Guard(by=asked.by or settings.by, within_seconds=within, quorum=asked.quorum)


def checked_guard(approval: object) -> Guard | None:
    """The rule of a registration; refused if no group of people could satisfy it."""
    if approval is None or approval is False:
        return None
    if approval is True:
        return Guard()
    if not isinstance(approval, Approval):
        raise _bad_approval("approval must be Approval(by=…, within=…, quorum=…), True or False")
    by = checked_names(approval.by)
    return Guard(
        by=by, within_seconds=_within_seconds(approval.within), quorum=checked_quorum(approval.quorum, by)
    )


def checked_risk(risk: object) -> str | None:
    """One of the known risks, or none."""
    known = next((one for one in RISKS if one == risk), None)
    if risk is None or known is not None:
        return known
    raise _bad_approval(f"risk must be one of {', '.join(RISKS)}, not {content.safe_repr(risk, 60)}", "risk")


def checked_names(by: object) -> tuple[str, ...]:
    """The names of the people who may decide; without names anyone may."""
    names = (by,) if isinstance(by, str) else by
    if not isinstance(names, (tuple, list)):
        raise _bad_approval("by must be names", "by")
    try:
        return tuple(dict.fromkeys(map(person_name, names)))
    except BadInput as refusal:
        raise _bad_approval(f"by must be names of people: {refusal.message}", "by") from None


def checked_quorum(quorum: object, by: tuple[str, ...]) -> int:
    """How many people must agree: at least one, and no more than may decide."""
    if not isinstance(quorum, int) or isinstance(quorum, bool) or not 1 <= quorum <= LARGEST_QUORUM:
        raise _bad_approval(f"quorum must be a whole number from 1 to {LARGEST_QUORUM}", "quorum")
    if by and quorum > count_people(by):
        raise _bad_approval(f"quorum is {quorum}, but only {count_people(by)} may decide", "quorum")
    return quorum


def count_people(names: Iterable[str]) -> int:
    """Count the people; spellings of one name are one person."""
    return len(set(map(same_person, names)))


def _within_seconds(within: timedelta | float | None) -> float | None:
    if within is None:
        return None
    seconds = within.total_seconds() if isinstance(within, timedelta) else within
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise _bad_approval("within must be seconds or a timedelta", "within")
    if not 0 < seconds <= LONGEST_WITHIN_SECONDS:
        raise _bad_approval("within must be more than no time, and at most ten years", "within")
    return float(seconds)


def _bad_approval(problem: str, field: str = "approval") -> BadInput:
    return BadInput(problem, code="bad_approval", field=field)
