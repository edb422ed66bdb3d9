"""The cards that events name, with their kinds and hashes; for verify and import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Final, NamedTuple

from endwell.machine.steps import PERMANENT_FAILURE
from endwell.model import facts as f
from endwell.model.card import CardKind, answer_id, call_id, nudge_id, shown_id
from endwell.store.log import Event

Kinds = tuple[CardKind, ...]

_ANSWERS: Final[Kinds] = ("tool.result", "signal")
_FIELDS: Final[tuple[tuple[str, str, Kinds], ...]] = (
    ("payload_card", "payload_hash", ("task.instruction",)),
    ("deliverable_card", "deliverable_hash", ("task.deliverable",)),
    ("result_card", "result_hash", ("tool.result",)),
    ("answer_card", "answer_hash", _ANSWERS),
)
"""Fields of facts that name a card, its hash, and the kinds that it may have."""


class Naming(NamedTuple):
    """One mention of a card in an event; the hash is None where the event does not say it.

    A card that `may_be_missing` is written only if there was something to keep. A card that `is_kept` may
    have been written before and is left as it was: of its namings the first counts.
    """

    card_id: str
    hash: str | None
    kinds: Kinds
    may_be_missing: bool = False
    is_kept: bool = False


def namings_of(fact: f.Fact, task_id: str) -> Iterator[Naming]:
    """The cards that a fact names."""
    for card_field, hash_field, kinds in _FIELDS:
        card_id = getattr(fact, card_field, None)
        if card_id is not None:
            yield Naming(card_id, getattr(fact, hash_field, None) or None, kinds)
    match fact:
        case f.StepRecorded(card=str(card_id)):
            yield Naming(card_id, fact.card_hash, _kinds_of_record(fact))
        case f.EffectDone():
            yield Naming(fact.card, fact.card_hash, ("step.result", "step.checked"))
        case f.EffectSettled(card=str(card_id)):
            yield Naming(card_id, fact.card_hash, ("step.result",))
        case f.DraftKept():
            yield Naming(fact.card, fact.card_hash, ("task.draft",))
        case f.ApprovalRequested(id=str(approval_id)):
            yield Naming(shown_id(approval_id), fact.shown_hash or None, ("approval.shown",))
        case f.TaskSuspended() | f.WaitsAdded():
            yield from _name_calls(fact)
        case f.TaskNudged():
            yield Naming(nudge_id(task_id, fact.nudges), fact.card_hash, ("nudge",))
        case f.WaitExpired():
            for call in fact.reported:
                yield Naming(answer_id(call, "timeout"), None, _ANSWERS, may_be_missing=True)


def _kinds_of_record(fact: f.StepRecorded) -> Kinds:
    """Events of earlier releases do not say which of two kinds it is."""
    if fact.card_kind is not None:
        return (fact.card_kind,)
    if fact.result_type == PERMANENT_FAILURE:
        return ("step.failure",)
    is_effect = fact.result_type == "side_effect_committed"
    return ("step.result", "step.reference" if is_effect else "step.checked")


def _name_calls(fact: f.TaskSuspended | f.WaitsAdded) -> Iterator[Naming]:
    """A wait without a hash may or may not have a card."""
    for wait, hash_ in zip_longest(fact.waits, fact.call_hashes, fillvalue=""):
        if not isinstance(wait, str):
            is_missing = not hash_
            yield Naming(call_id(wait.tool_call_id), hash_ or None, ("tool.call",), is_missing, is_kept=True)


def is_answer(card_id: str, task_id: str, kind: CardKind) -> bool:
    """Whether the card holds an answer; no event names it before a turn takes it."""
    return card_id.startswith(f"{task_id}.a.") and kind in _ANSWERS


class NamedCard(NamedTuple):
    """All that a log says of one card; `version` is that of the first event that names it."""

    version: int
    hashes: frozenset[str]
    kinds: frozenset[CardKind]
    may_be_missing: bool


def named_cards(events: Iterable[Event]) -> dict[str, NamedCard]:
    """Every card that these events of one task name."""
    found: dict[str, NamedCard] = {}
    for event in events:
        for naming in namings_of(event.fact, event.task_id):
            hashes, kinds = frozenset([naming.hash] if naming.hash else ()), frozenset(naming.kinds)
            known = found.get(naming.card_id)
            if known is None:
                found[naming.card_id] = NamedCard(event.version, hashes, kinds, naming.may_be_missing)
            elif not naming.is_kept:
                may_be_missing = known.may_be_missing and naming.may_be_missing
                found[naming.card_id] = NamedCard(
                    known.version, known.hashes | hashes, known.kinds & kinds, may_be_missing
                )
    return found
