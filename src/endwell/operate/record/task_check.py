"""Check what the store has of one task: log, row, cards and side rows must agree. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from endwell.machine.evolve import evolve
from endwell.model import facts as f
from endwell.model.card import Card, CardKind
from endwell.model.status import SUSPENDED
from endwell.model.task import Task, has_wait_rows, open_waits
from endwell.operate.record.named_cards import NamedCard, is_answer, named_cards
from endwell.store.log import Event, Problem, check_chain
from endwell.store.reads.side_rows import Key, SideRows, is_as_folded
from endwell.store.working_set import replay

_WITH_SIDE_ROWS: Final = frozenset(
    fact.type for fact in (f.ApprovalRequested, f.TaskDeadLettered, f.TaskSuspended)
)
"""Events that add rows of approvals, dead letters or waits."""


class CardDigest(NamedTuple):
    """A card without its content, which may be a megabyte: only its hash."""

    id: str
    task_id: str
    kind: CardKind
    hash: str
    actual_hash: str

    @classmethod
    def of_card(cls, card: Card) -> CardDigest:
        """The digest of a card as it was read."""
        return cls(card.id, card.task_id, card.kind, card.hash, sha256(card.content).hexdigest())


@dataclass
class TaskRecord:
    """All that the store has of one task. Side rows are those of approvals, dead letters and waits."""

    row: Task | None = None
    events: list[Event] = field(default_factory=list)
    cards: list[CardDigest] = field(default_factory=list)
    side_rows: list[tuple[Key, Any]] = field(default_factory=list)


def problems_of(task_id: str, record: TaskRecord) -> list[Problem]:
    """What is wrong: with log and row; if they are right, with the cards; then with the side rows."""
    return (
        log_problems(task_id, record.row, record.events)
        or _card_problems(task_id, record.events, record.cards)
        or side_row_problems(task_id, record.events, record.side_rows)
    )


def log_problems(task_id: str, row: Task | None, events: list[Event]) -> list[Problem]:
    """What is wrong with the hash chain of the log, or with the row that it folds to."""
    if row is None:
        return list(check_chain(task_id, events, None)) if events else []
    broken = list(check_chain(task_id, events, (row.version, row.head_hash)))
    if broken:
        return broken
    try:
        is_same = replay(events) == row
    except Exception:  # the chain is whole, so a program other than Endwell wrote this log
        return [Problem(task_id, row.version, "unreadable")]
    return [] if is_same else [Problem(task_id, row.version, "row_differs")]


def _card_problems(task_id: str, events: list[Event], cards: Iterable[CardDigest]) -> list[Problem]:
    named, wrong = named_cards(events), list[Problem]()
    for card in cards:
        known = named.pop(card.id, None)
        if card.task_id != task_id or (known is None and not is_answer(card.id, task_id, card.kind)):
            wrong.append(Problem(task_id, 0, "card_unnamed", card.id))
        elif not _is_as_named(card, known):
            wrong.append(Problem(task_id, known.version if known else 0, "content_changed", card.id))
    missing = [(card_id, one.version) for card_id, one in named.items() if not one.may_be_missing]
    return wrong + [Problem(task_id, version, "content_missing", card_id) for card_id, version in missing]


def _is_as_named(card: CardDigest, named: NamedCard | None) -> bool:
    """Whether a card is what its own hash and every event that names it say."""
    if card.hash != card.actual_hash:
        return False
    return named is None or (card.kind in named.kinds and named.hashes <= {card.actual_hash})


def side_row_problems(task_id: str, events: list[Event], rows: Iterable[tuple[Key, Any]]) -> list[Problem]:
    """What is wrong with the approvals, the dead letter and the waits of one task."""
    task, folded = _folded_side_rows(events)
    expected_rows, wrong = folded.rows(), list[Problem]()
    for key, row in rows:
        expected = expected_rows.pop(key, None)
        if expected is None:
            wrong.append(Problem(task_id, 0, f"{key[0]}_unnamed", key[-1]))
        elif not is_as_folded(row, expected):
            wrong.append(Problem(task_id, 0, f"{key[0]}_differs", key[-1]))
    wrong += [Problem(task_id, 0, f"{key[0]}_missing", key[-1]) for key in expected_rows]
    if task is not None and not _counts_its_waits(task, folded):
        wrong.append(Problem(task_id, 0, "waits_miscounted"))
    return wrong


def _folded_side_rows(events: list[Event]) -> tuple[Task | None, SideRows]:
    """The side rows that a log folds to, and its task. Most logs have none, and are not folded."""
    task, folded = None, SideRows()
    for event in events if any(event.type in _WITH_SIDE_ROWS for event in events) else ():
        fact, before = event.fact, task
        task = evolve(task, fact, event.at, namespace=event.namespace, task_id=event.task_id)
        folded.take(before, task, fact, event.at)
    return task, folded


def _counts_its_waits(task: Task, folded: SideRows) -> bool:
    """Whether a task whose waits are rows of their own has the right count of open ones."""
    if task.status != SUSPENDED or not has_wait_rows(task):
        return True
    rows = folded.waits.get(task.turn_id or "", {}).values()
    return open_waits(task) == sum(row.wait_status == "waiting" for row in rows)
