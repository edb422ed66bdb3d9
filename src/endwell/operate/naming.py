"""Which cards the events of a log name, of which kind and by which hash, for verify and import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import zip_longest
from typing import Final, NamedTuple

from endwell.machine.steps import PERMANENT_FAILURE
from endwell.model import facts as f
from endwell.model.card import Card, CardKind, answer_id, call_id, nudge_id, shown_id
from endwell.store.log import Event

Kinds = tuple[CardKind, ...]

_ANSWERS: Final[Kinds] = ("tool.result", "signal")
_NAMED_BY: Final[tuple[tuple[str, str, Kinds], ...]] = (
    ("payload_card", "payload_hash", ("task.instruction",)),
    ("deliverable_card", "deliverable_hash", ("task.deliverable",)),
    ("result_card", "result_hash", ("tool.result",)),
    ("answer_card", "answer_hash", _ANSWERS),
)


class Naming(NamedTuple):
    """A card that an event names. Without a hash its content is compared with its own hash alone.

    A card that `may_be_missing` is written only where there was something to keep. One that `is_kept` may
    have been written before, and is then left as it is: of its namings the first counts.
    """

    card_id: str
    hash: str | None
    kinds: Kinds
    may_be_missing: bool = False
    is_kept: bool = False


def namings(fact: f.Fact, task_id: str) -> Iterator[Naming]:
    """The cards that a fact names."""
    for card_field, hash_field, kinds in _NAMED_BY:
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
            yield from _calls(fact)
        case f.TaskNudged():
            yield Naming(nudge_id(task_id, fact.nudges), fact.card_hash, ("nudge",))
        case f.WaitExpired():
            for call in fact.reported:
                yield Naming(answer_id(call, "timeout"), None, _ANSWERS, may_be_missing=True)


def _kinds_of_record(fact: f.StepRecorded) -> Kinds:
    """Events of earlier releases leave open which of two it is."""
    if fact.card_kind is not None:
        return (fact.card_kind,)
    if fact.result_type == PERMANENT_FAILURE:
        return ("step.failure",)
    is_effect = fact.result_type == "side_effect_committed"
    return ("step.result", "step.reference" if is_effect else "step.checked")


def _calls(fact: f.TaskSuspended | f.WaitsAdded) -> Iterator[Naming]:
    """Of waits without a hash it is not known whether they have a card."""
    for wait, hash_ in zip_longest(fact.waits, fact.call_hashes, fillvalue=""):
        if not isinstance(wait, str):
            is_loose = not hash_
            yield Naming(call_id(wait.tool_call_id), hash_ or None, ("tool.call",), is_loose, is_kept=True)


def is_answer(card_id: str, task_id: str, kind: CardKind) -> bool:
    """Whether it holds an answer as it came: no event names one before a turn takes it."""
    return card_id.startswith(f"{task_id}.a.") and kind in _ANSWERS


class NamedPlace(NamedTuple):
    """All that a log says of one card: the versions of its events count from 1."""

    version: int
    hashes: frozenset[str]
    kinds: frozenset[CardKind]
    may_be_missing: bool


def named_cards(events: Iterable[Event]) -> dict[str, NamedPlace]:
    """Every card that these events of one task name."""
    found: dict[str, NamedPlace] = {}
    for event in events:
        for naming in namings(event.fact, event.task_id):
            hashes, kinds = frozenset([naming.hash] if naming.hash else ()), frozenset(naming.kinds)
            known = found.get(naming.card_id)
            if known is None:
                found[naming.card_id] = NamedPlace(event.version, hashes, kinds, naming.may_be_missing)
            elif not naming.is_kept:
                is_loose = known.may_be_missing and naming.may_be_missing
                about = (known.hashes | hashes, known.kinds & kinds, is_loose)
                found[naming.card_id] = NamedPlace(known.version, *about)
    return found


def is_as_named(card: Card, named: NamedPlace | None) -> bool:
    """Whether a card is what its own hash and every event that names it say."""
    actual = sha256(card.content).hexdigest()
    if card.hash != actual:
        return False
    return named is None or (card.kind in named.kinds and all(one == actual for one in named.hashes))
